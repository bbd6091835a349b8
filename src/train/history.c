/* The stages behind a checkpoint; see history.h. */
#include "train/history.h"

#include "base/filemap.h"
#include "data/jsonl.h"
#include "format/json.h"

static json_t *read_history(const char *dir) {
    char *path = hh_path_join(dir, "training.json");
    hh_error ignored;
    json_t *o = NULL;
    hh_json_read(&o, path, (size_t)1 << 24, &ignored);
    hh_free(path);
    return o;
}

static hh_code add_tokens(void *context, const json_t *o, hh_error *err) {
    (void)err;
    *(int64_t *)context += json_integer_value(json_object_get(o, "tokens"));
    return HH_OK;
}

hh_code hh_history_write(const char *dir, const char *student, const hh_history_stage *stage, hh_error *err) {
    int64_t tokens = 0;
    char *log = hh_path_join(dir, "log.jsonl"), *path = hh_path_join(dir, "training.json");
    hh_code code = hh_jsonl_read(log, 0, add_tokens, &tokens, err);
    json_t *before = read_history(student), *stages = json_array();
    json_array_extend(stages, json_object_get(before, "stages"));
    json_array_append_new(stages, json_pack("{s:s, s:I, s:I, s:s, s:I}", "stage", stage->stage, "steps",
                                            (json_int_t)stage->steps, "tokens", (json_int_t)tokens, "teacher",
                                            stage->teacher, "seed", (json_int_t)stage->seed));
    json_t *all =
        json_pack("{s:I, s:o}", "tokens", (json_int_t)(tokens + hh_history_tokens(student)), "stages", stages);
    if (code == HH_OK)
        code = hh_json_write(path, all, 0, err);
    else
        json_decref(all);
    json_decref(before);
    hh_free(log);
    hh_free(path);
    return code;
}

int64_t hh_history_tokens(const char *path) {
    json_t *o = hh_is_directory(path) ? read_history(path) : NULL;
    int64_t n = json_integer_value(json_object_get(o, "tokens"));
    json_decref(o);
    return n;
}
