/* Grammars over bytes: which tokens may follow, so that a model's text is JSON, or follows a JSON schema.
 *
 * A grammar is context-free and free of left recursion; a state is the set of all stacks of positions in which a text can
 * stand, so that nothing need be decided early. A token fits when its bytes, one by one, leave a stack alive.
 */
#ifndef HH_TEXT_GRAMMAR_H
#define HH_TEXT_GRAMMAR_H

#include "base/memory.h"

typedef struct hh_grammar hh_grammar;

/* A JSON object (`schema` NULL or ""), or what a JSON schema describes: type, properties, required,
 * additionalProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, enum, const, anyOf, oneOf, $ref
 * within the schema; annotations are passed over. HH_EFORMAT: not JSON; HH_EUNSUPPORTED names any other keyword.
 * Properties come in the schema's order; such as it does not name come only where additionalProperties says so. */
hh_code hh_grammar_from_schema(hh_grammar **out, const char *schema, hh_error *err);
void hh_grammar_free(hh_grammar *g);

typedef struct hh_grammar_state hh_grammar_state;
hh_grammar_state *hh_grammar_start(const hh_grammar *g); /* the grammar must outlive it */
void hh_grammar_state_free(hh_grammar_state *s);

/* May these bytes come next? The state stays. */
bool hh_grammar_fits(hh_grammar_state *s, const char *bytes, size_t n);
/* They come. False, and the state stays, when they do not fit. */
bool hh_grammar_take(hh_grammar_state *s, const char *bytes, size_t n);
/* The same for n texts sorted by their bytes (as memcmp, a shorter one first), into fits [n]: what they begin with alike
 * is walked once. An empty text does not fit. */
typedef struct hh_grammar_text {
    const char *bytes;
    size_t n;
} hh_grammar_text;
void hh_grammar_fit_sorted(hh_grammar_state *s, const hh_grammar_text *text, int64_t n, bool *fits);
bool hh_grammar_may_end(const hh_grammar_state *s);
bool hh_grammar_must_end(const hh_grammar_state *s); /* nothing can follow */

#endif
