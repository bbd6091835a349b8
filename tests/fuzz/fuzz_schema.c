/* Any text as a JSON schema: refused with a sentence, or a grammar that can be walked. What follows a NUL is walked with. */
#include "text/grammar.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    hh_grammar *g;
    char *schema = hh_sprintf("%.*s", (int)(size < 4096 ? size : 4096), (const char *)data);
    size_t used = strlen(schema) + 1;
    hh_code code = hh_grammar_from_schema(&g, schema, &err);
    hh_free(schema);
    if (code != HH_OK) {
        HH_ASSERT(err.text[0]);
        return 0;
    }
    hh_grammar_state *s = hh_grammar_start(g);
    for (size_t i = used; i < size; i++) hh_grammar_take(s, (const char *)data + i, 1);
    hh_grammar_state_free(s);
    hh_grammar_free(g);
    return 0;
}
