/* The engine: a model, its tokenizer, where it computes, and the snapshots of what it has read; see hydrahead.h. */
#include "api/api.h"

#include "ops/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { STEP_SEQUENCES = 32 }; /* of one pass over the weights */

const char *hh_version(void) {
    return HH_VERSION;
}

int hh_api_version(void) {
    return HH_API_VERSION;
}

void hh_memory_free(void *p) {
    hh_free(p);
}

void hh_engine_say(const hh_engine *e, hh_log_level level, const char *format, ...) {
    char sentence[1200];
    va_list args;
    if (!e->log) return;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    e->log(e->log_context, level, sentence);
}

hh_code hh_engine_need_tokenizer(const hh_engine *e, hh_error *err) {
    if (e->t) return HH_OK;
    *err = e->no_tokenizer;
    return err->code;
}

/* -- opening -- */

static void add_end_ids(hh_engine *e, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n && e->n_end_ids < HH_MOST_END_IDS; i++) {
        int64_t at = 0;
        while (at < e->n_end_ids && e->end_ids[at] != ids[i]) at++;
        if (at == e->n_end_ids) e->end_ids[e->n_end_ids++] = ids[i];
    }
}

/* A model may come without a tokenizer, or with one that is not understood: tokens can be given all the same. */
static void open_tokenizer(hh_engine *e) {
    int64_t n = 0;
    if (hh_tokenizer_open(&e->t, e->m->path, &e->no_tokenizer) != HH_OK) {
        e->t = NULL;
        hh_engine_say(e, HH_LOG_WARNING, "no tokenizer: %s", e->no_tokenizer.text);
    }
    add_end_ids(e, e->m->config.end_ids, e->m->config.n_end_ids);
    const int32_t *ids = e->t ? hh_tokenizer_end_ids(e->t, &n) : NULL;
    add_end_ids(e, ids, n);
}

static hh_code open_group(hh_engine *e, const hh_engine_options *o, hh_error *err) {
    const hh_snapshots_options snapshots = {.max_bytes = o->cache_bytes ? o->cache_bytes : (size_t)1 << 30,
                                            .dir = o->cache_dir,
                                            .max_disk_bytes = o->cache_dir_bytes};
    const int64_t chunk = o->chunk > 0 ? o->chunk : e->be->pass_tokens;
    const hh_group_options group = {.chunk = (chunk + HH_SNAPSHOT_ALIGN - 1) / HH_SNAPSHOT_ALIGN * HH_SNAPSHOT_ALIGN,
                                    .most = STEP_SEQUENCES,
                                    .kv_dtype = e->kv_dtype,
                                    .snapshots = o->cache_bytes == SIZE_MAX ? NULL : &snapshots};
    return hh_group_new(&e->group, e->m, &group, err);
}

static hh_code check_options(const hh_engine_options *o, hh_error *err) {
    if (o->threads < 0 || o->threads > 4096)
        return hh_fail(err, HH_EINVAL, "%d threads make no sense; 0 is all processors", o->threads);
    if (o->chunk < 0 || o->chunk > 1 << 20)
        return hh_fail(err, HH_EINVAL, "a chunk of %lld tokens makes no sense; 0 is what keeps the device busy",
                       (long long)o->chunk);
    return HH_OK;
}

static hh_code open_parts(hh_engine *e, const char *path, const hh_engine_options *o, hh_error *err) {
    size_t arena = 0, mapped = 0;
    HH_TRY(check_options(o, err));
    HH_TRY(hh_device_open(&e->be, o->device, o->dtype, o->threads, err));
    HH_TRY(hh_model_measure(path, e->be, HH_LOAD_STORED, NULL, &arena, &mapped, err));
    HH_TRY(hh_model_open(&e->m, e->be, path, HH_LOAD_STORED, err));
    HH_TRY(hh_cache_type(&e->kv_dtype, o->kv, e->be, &e->m->config, err));
    if (o->rope) HH_TRY(hh_model_stretch(e->m, o->rope, err));
    e->weight_bytes = arena + mapped;
    e->backend_name = e->be->isa ? hh_sprintf("%s (%s)", e->be->name, e->be->isa) : hh_strdup(e->be->name);
    open_tokenizer(e);
    return open_group(e, o, err);
}

hh_code hh_engine_open(hh_engine **out, const char *path, const hh_engine_options *options, hh_error *err) {
    static const hh_engine_options defaults = {0};
    const hh_engine_options *o = options ? options : &defaults;
    hh_engine *e = hh_alloc(sizeof *e);
    *out = NULL;
    *err = (hh_error){0};
    e->vocabulary = hh_alloc(sizeof *e->vocabulary);
    e->log = o->log;
    e->log_context = o->log_context;
    hh_code code = path ? open_parts(e, path, o, err) : hh_fail(err, HH_EINVAL, "no path of a model was given");
    if (code != HH_OK) {
        hh_engine_close(e);
        return code;
    }
    *out = e;
    return HH_OK;
}

void hh_engine_close(hh_engine *e) {
    if (!e) return;
    hh_group_free(e->group);
    hh_tokenizer_close(e->t);
    hh_model_close(e->m);
    hh_backend_close(e->be);
    hh_vocabulary_free(*e->vocabulary);
    hh_free(e->vocabulary);
    hh_free(e->backend_name);
    hh_free(e);
}

/* -- what it is, and what it did -- */

static int64_t kept_heads(const hh_config *c) {
    int64_t n = 0;
    for (int64_t l = 0; l < c->n_layers; l++) n += hh_config_fa_count(c, l);
    return n;
}

hh_engine_info hh_engine_get_info(const hh_engine *e) {
    const hh_config *c = &e->m->config;
    const int64_t few = 64, many = few + (1 << 16);
    const double at_few = (double)hh_cache_bytes(c, few, e->kv_dtype),
                 each = ((double)hh_cache_bytes(c, many, e->kv_dtype) - at_few) / (double)(many - few);
    return (hh_engine_info){.path = e->m->path,
                            .family = hh_family_names[c->family],
                            .backend = e->backend_name,
                            .hybrid = c->hybrid,
                            .vocab = c->vocab,
                            .width = c->width,
                            .n_layers = c->n_layers,
                            .n_heads = c->n_heads,
                            .n_kept_heads = kept_heads(c),
                            .native_context = c->max_position,
                            .cache_bytes_per_token = each,
                            .state_bytes = at_few - each * (double)few,
                            .weight_bytes = e->weight_bytes};
}

size_t hh_engine_sequence_bytes(const hh_engine *e, int64_t context) {
    return context < 1 ? 0 : hh_group_session_bytes(&e->m->config, context, e->kv_dtype);
}

hh_engine_stats hh_engine_get_stats(const hh_engine *e) {
    hh_engine_stats s = {.tokens_read = e->tokens_read, .tokens_reused = e->tokens_reused};
    if (!hh_group_snapshots(e->group)) return s;
    const hh_snapshots_stats kept = hh_snapshots_get_stats(hh_group_snapshots(e->group));
    s.snapshots = kept.n;
    s.snapshots_refused = kept.refused;
    s.snapshot_bytes = kept.bytes;
    s.snapshot_disk_bytes = kept.disk_bytes;
    return s;
}

hh_code hh_engine_write_snapshot(hh_engine *e, bool *done, hh_error *err) {
    *done = true;
    return hh_group_snapshots(e->group) ? hh_snapshots_write(hh_group_snapshots(e->group), done, err) : HH_OK;
}
