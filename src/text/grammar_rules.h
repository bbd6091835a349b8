/* Inside grammars: rules being built (grammar_schema.c) and walked (grammar.c). */
#ifndef HH_TEXT_GRAMMAR_RULES_H
#define HH_TEXT_GRAMMAR_RULES_H

#include "text/grammar.h"

typedef struct hh_symbol {
    enum { HH_SYMBOL_END, HH_SYMBOL_BYTES, HH_SYMBOL_RULE } kind;
    uint8_t lo, hi; /* BYTES: one byte of [lo, hi] */
    int32_t rule;   /* RULE */
} hh_symbol;

/* One rule: alternatives one behind another in `symbol`, each closed by END. */
typedef struct hh_rule {
    hh_symbol *symbol;
    int32_t n, capacity, n_alternatives;
} hh_rule;

struct hh_grammar {
    hh_rule *rule; /* rule 0 is the start */
    int32_t n, capacity;
};

int32_t hh_rule_new(hh_grammar *g);
void hh_rule_byte(hh_grammar *g, int32_t rule, uint8_t lo, uint8_t hi);
void hh_rule_text(hh_grammar *g, int32_t rule, const char *text);
void hh_rule_refer(hh_grammar *g, int32_t rule, int32_t other);
void hh_rule_close(hh_grammar *g, int32_t rule); /* ends an alternative */
/* x{min,max}; max < 0: without end. A rule. */
int32_t hh_rule_repeat(hh_grammar *g, int32_t x, int64_t min, int64_t max);

/* Can expanding some rule come back to it before a byte? Such a grammar cannot be walked. */
bool hh_grammar_is_left_recursive(const hh_grammar *g);

#endif
