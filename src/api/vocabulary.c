/* The vocabulary in the order of its bytes, for grammars: which tokens fit is found in one walk over what they begin
 * with. */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    hh_grammar_text text;
    int32_t id;
} entry;

static int compare(const void *a_, const void *b_) {
    const entry *a = a_, *b = b_;
    const size_t n = a->text.n < b->text.n ? a->text.n : b->text.n;
    const int order = memcmp(a->text.bytes, b->text.bytes, n);
    if (order) return order;
    if (a->text.n != b->text.n) return a->text.n < b->text.n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

hh_vocabulary *hh_vocabulary_new(const hh_tokenizer *t, int64_t vocab) {
    entry *all = hh_alloc((size_t)vocab * sizeof *all);
    hh_vocabulary *v = hh_alloc(sizeof *v);
    const int64_t known = hh_tokenizer_vocab_size(t);
    for (int32_t id = 0; id < vocab && id < known; id++) {
        entry e = {.id = id};
        e.text.bytes = hh_tokenizer_token(t, id, &e.text.n);
        if (e.text.bytes && e.text.n && !hh_tokenizer_is_special(t, id)) all[v->n++] = e;
    }
    qsort(all, (size_t)v->n, sizeof *all, compare);
    v->text = hh_alloc((size_t)v->n * sizeof *v->text);
    v->id = hh_alloc((size_t)v->n * sizeof *v->id);
    v->fits = hh_alloc((size_t)v->n * sizeof *v->fits);
    for (int64_t i = 0; i < v->n; i++) {
        v->text[i] = all[i].text;
        v->id[i] = all[i].id;
    }
    hh_free(all);
    return v;
}

void hh_vocabulary_free(hh_vocabulary *v) {
    if (!v) return;
    hh_free(v->text);
    hh_free(v->id);
    hh_free(v->fits);
    hh_free(v);
}
