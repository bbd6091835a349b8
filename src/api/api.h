/* Inside the public interface: what engine.c, text.c, sequence.c and sampler.c share. */
#ifndef HH_API_API_H
#define HH_API_API_H

#include "session/session.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

enum { HH_MOST_END_IDS = 64 };

/* Every token that is text, sorted by its bytes. */
typedef struct hh_vocabulary {
    hh_grammar_text *text; /* [n] */
    int32_t *id;           /* [n] */
    bool *fits;            /* [n] work */
    int64_t n;
} hh_vocabulary;
hh_vocabulary *hh_vocabulary_new(const hh_tokenizer *t, int64_t vocab);
void hh_vocabulary_free(hh_vocabulary *v); /* NULL is accepted */

struct hh_engine {
    hh_backend *be;
    hh_model *m;
    hh_tokenizer *t;       /* NULL: no_tokenizer says why */
    hh_error no_tokenizer; /* HH_OK when there is one */
    hh_group *group;
    hh_dtype kv_dtype;
    char *backend_name; /* "cpu (avx2)" */
    int32_t end_ids[HH_MOST_END_IDS];
    int64_t n_end_ids;
    size_t weight_bytes;
    int64_t tokens_read, tokens_reused, refused_said;
    hh_vocabulary **vocabulary; /* made for the first grammar */
    hh_log_fn *log;
    void *log_context;
};

/* One sentence to whoever listens. */
void hh_engine_say(const hh_engine *e, hh_log_level level, const char *format, ...) HH_PRINTF(3, 4);
/* HH_OK when the engine has a tokenizer, else why not. */
hh_code hh_engine_need_tokenizer(const hh_engine *e, hh_error *err);

#endif
