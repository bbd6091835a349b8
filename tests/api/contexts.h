/* What the tests of the public interface share: engines over the shipped model and small ones, prompts, and what a prompt
 * gives when nothing is known of it. */
#ifndef HH_TESTS_API_CONTEXTS_H
#define HH_TESTS_API_CONTEXTS_H

#include "support/support.h"
#include "support/zoo.h"

#include "hydrahead.h"

#include <string.h>

static hh_error err;

static const char *const all_models[] = {"nano", "hybrid_default", "hybrid_gate_everything", "qwen3_gqa2"};
enum { N_MODELS = 4 };

static inline const char *model_path(const char *name) {
    return !strcmp(name, "nano") ? name : zoo_directory(zoo_case(name));
}

/* Of the caches of all engines that do not ask for another: some tests run once more with others. */
static const char *kv_type;

static inline bool is_hybrid(const char *name) {
    return strstr(name, "hybrid") != NULL;
}

static inline hh_engine *open_engine(const char *name, hh_engine_options o) {
    hh_engine *e;
    o.threads = 2;
    if (!o.kv) o.kv = kv_type;
    assert_ok(hh_engine_open(&e, model_path(name), &o, &err));
    return e;
}

static inline hh_sequence *new_sequence(hh_engine *e, int64_t context) {
    hh_sequence *s;
    assert_ok(hh_sequence_new(&s, e, context, &err));
    return s;
}

/* Token i of text number `kind`, of a vocabulary of at least 97. */
static inline int32_t token_of(int kind, int64_t i) {
    return (int32_t)((i * i * 31 + i * 7 + 3 + kind * (i % 13 + 11)) % 97);
}

static inline void fill_ids(int32_t *ids, int kind, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) ids[i] = token_of(kind, i);
}

static inline size_t logits_bytes(const hh_engine *e) {
    return (size_t)hh_engine_get_info(e).vocab * sizeof(float);
}

/* Logits behind ids[0, n), read at once by an engine that knows nothing; the caller frees. */
static inline float *read_cold(const char *name, const int32_t *ids, int64_t n) {
    hh_engine *e = open_engine(name, (hh_engine_options){.cache_bytes = SIZE_MAX, .chunk = 4096});
    hh_sequence *s = new_sequence(e, n);
    assert_ok(hh_sequence_prompt(s, ids, n, &err));
    assert_int_equal(hh_sequence_reused(s), 0);
    float *logits = hh_alloc(logits_bytes(e));
    memcpy(logits, hh_sequence_logits(s), logits_bytes(e));
    hh_sequence_free(s);
    hh_engine_close(e);
    return logits;
}

/* The prompt reuses that many tokens, and its logits are those of a cold reading, bit for bit. */
static inline void check_prompt(const char *name, hh_engine *e, hh_sequence *s, const int32_t *ids, int64_t n,
                                int64_t reused) {
    assert_ok(hh_sequence_prompt(s, ids, n, &err));
    assert_int_equal(hh_sequence_reused(s), reused);
    assert_int_equal(hh_sequence_length(s), n);
    float *cold = read_cold(name, ids, n);
    assert_memory_equal(hh_sequence_logits(s), cold, logits_bytes(e));
    hh_free(cold);
}

#endif
