/* Where a model's tokenizer is: tokenizer.json in its directory, tokenizer.gguf beside a hybrid that came from a GGUF
 * teacher, the GGUF file itself, or a tokenizer.json by its own path. */
#include "base/filemap.h"
#include "format/gguf.h"
#include "text/tokenizer.h"

#include <string.h>

static hh_code open_gguf(hh_tokenizer **out, const char *path, hh_error *err) {
    hh_store *store;
    HH_TRY(hh_store_open(&store, path, err));
    hh_code code = hh_store_gguf(store)
                       ? hh_tokenizer_open_gguf(out, hh_store_gguf(store), path, err)
                       : hh_fail(err, HH_EFORMAT, "%s: not a GGUF file, so it holds no tokenizer", path);
    hh_store_close(store);
    return code;
}

hh_code hh_tokenizer_open(hh_tokenizer **out, const char *model_path, hh_error *err) {
    *out = NULL;
    size_t n = strlen(model_path);
    if (!hh_is_directory(model_path)) {
        if (n >= 5 && strcmp(model_path + n - 5, ".json") == 0) return hh_tokenizer_open_json(out, model_path, err);
        return open_gguf(out, model_path, err);
    }
    char *json = hh_path_join(model_path, "tokenizer.json"), *gguf = hh_path_join(model_path, "tokenizer.gguf");
    hh_code code;
    if (hh_file_exists(json))
        code = hh_tokenizer_open_json(out, json, err);
    else if (hh_file_exists(gguf))
        code = open_gguf(out, gguf, err);
    else
        code = hh_fail(err, HH_EIO, "%s: no tokenizer.json (nor tokenizer.gguf) in this directory", model_path);
    hh_free(json);
    hh_free(gguf);
    return code;
}
