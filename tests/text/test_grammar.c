/* Grammars: JSON and JSON schemas as sets of texts. */
#include "support/support.h"
#include "text/grammar.h"

#include <string.h>

static hh_error err;

/* Is the whole text a sentence of the schema? Every prefix must fit on the way. */
static bool follows(const char *schema, const char *text) {
    hh_grammar *g;
    if (hh_grammar_from_schema(&g, schema, &err) != HH_OK) fail_msg("%s: %s", schema, err.text);
    hh_grammar_state *s = hh_grammar_start(g);
    bool fits = hh_grammar_fits(s, text, strlen(text)), taken = true;
    for (const char *c = text; *c && taken; c++) taken = hh_grammar_take(s, c, 1);
    assert_int_equal(fits, taken); /* as one piece and byte by byte */
    bool whole = taken && hh_grammar_may_end(s);
    hh_grammar_state_free(s);
    hh_grammar_free(g);
    return whole;
}

static void json_objects(void **unused) {
    (void)unused;
    static const char *const yes[] = {"{}",
                                      "{ }",
                                      "{\"a\": 1}",
                                      "{\"a\":[1, 2.5e-3, -0, true, null, \"x\\n\\u00e9 \xc3\xa9 \xf0\x9f\x98\x80\"]}",
                                      "{\n  \"a\": {\n    \"b\": []\n  }\n}",
                                      "{\"\": \"\\\"\\\\\"}"};
    static const char *const no[] = {"",
                                     "[]",
                                     "{\"a\"}",
                                     "{\"a\": 01}",
                                     "{\"a\": 1,}",
                                     "{'a': 1}",
                                     "{\"a\": tru}",
                                     "{} ",
                                     "{\"a\": \"\n\"}",
                                     "{\"a\": \"\\x\"}",
                                     "{\"a\": \"\xc3\"}",
                                     "{\"a\": \"\xed\xa0\x80\"}"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!follows(NULL, yes[i])) fail_msg("should follow: %s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (follows("", no[i])) fail_msg("should not follow: %s", no[i]);
}

static void schemas(void **unused) {
    (void)unused;
    static const struct {
        const char *schema, *yes, *no;
    } cases[] = {
        {"{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"age\": {\"type\": \"integer\"}}, "
         "\"required\": [\"name\"]}",
         "{\"name\": \"A\", \"age\": 3}", "{\"age\": 3}"},
        {"{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"age\": {\"type\": \"integer\"}}}",
         "{\"age\": -12}", "{\"age\": 1.5}"},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"null\"}}, \"additionalProperties\": false}", "{}",
         "{\"b\": 1}"},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"null\"}}, \"additionalProperties\": {\"type\": "
         "\"boolean\"}}",
         "{\"a\": null, \"b\": true}", "{\"b\": 1}"},
        {"{\"enum\": [\"red\", 3, null]}", "\"red\"", "\"blue\""},
        {"{\"const\": {\"a\": [1]}}", "{\"a\":[1]}", "{\"a\":[2]}"},
        {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 2, \"maxItems\": 3}", "[1, 2, 3]",
         "[1]"},
        {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 2, \"maxItems\": 3}", "[1,2]",
         "[1,2,3,4]"},
        {"{\"type\": \"array\", \"maxItems\": 0}", "[]", "[1]"},
        {"{\"type\": \"string\", \"minLength\": 1, \"maxLength\": 2}", "\"\xc3\xa9\xc3\xa9\"", "\"\""},
        {"{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"boolean\"}]}", "true", "\"x\""},
        {"{\"type\": [\"string\", \"null\"]}", "null", "1"},
        {"{\"$ref\": \"#/$defs/tree\", \"$defs\": {\"tree\": {\"type\": \"object\", \"properties\": {\"left\": "
         "{\"$ref\": \"#/$defs/tree\"}}}}}",
         "{\"left\": {\"left\": {}}}", "{\"left\": 1}"},
        {"true", "[null]", "nul"},
        {"{}", "-0.5E+10", "+1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!follows(cases[i].schema, cases[i].yes)) fail_msg("%s should follow %s", cases[i].yes, cases[i].schema);
        if (follows(cases[i].schema, cases[i].no)) fail_msg("%s should not follow %s", cases[i].no, cases[i].schema);
    }
}

static void what_cannot_be_said_is_refused(void **unused) {
    (void)unused;
    hh_grammar *g;
    assert_refused(hh_grammar_from_schema(&g, "{\"type\": \"string\", \"pattern\": \"a+\"}", &err), HH_EUNSUPPORTED,
                   "pattern");
    assert_refused(hh_grammar_from_schema(&g, "{\"type\": \"integer\", \"minimum\": 3}", &err), HH_EUNSUPPORTED,
                   "minimum");
    assert_refused(hh_grammar_from_schema(&g, "{\"type\": \"text\"}", &err), HH_EFORMAT, "text");
    assert_refused(hh_grammar_from_schema(&g, "{", &err), HH_EFORMAT, "line 1");
    assert_refused(hh_grammar_from_schema(&g, "3", &err), HH_EFORMAT, "schema");
    assert_refused(hh_grammar_from_schema(&g, "{\"$ref\": \"#/nowhere\"}", &err), HH_EUNSUPPORTED, "#/nowhere");
    assert_refused(hh_grammar_from_schema(&g, "{\"$ref\": \"#\"}", &err), HH_EUNSUPPORTED, "$ref");
    assert_refused(hh_grammar_from_schema(&g, "{\"type\": \"array\", \"minItems\": 1000000}", &err), HH_EUNSUPPORTED,
                   "minItems");
    assert_refused(hh_grammar_from_schema(&g, "{\"type\": \"array\", \"minItems\": 3, \"maxItems\": 2}", &err),
                   HH_EFORMAT, "array");
}

static void long_texts_stay_cheap(void **unused) {
    (void)unused;
    hh_grammar *g;
    assert_ok(hh_grammar_from_schema(&g, NULL, &err));
    hh_grammar_state *s = hh_grammar_start(g);
    assert_true(hh_grammar_take(s, "{\"a\": \"", 7));
    for (int i = 0; i < 200000; i++) assert_true(hh_grammar_take(s, "x", 1));
    assert_false(hh_grammar_may_end(s));
    assert_true(hh_grammar_take(s, "\"}", 2));
    assert_true(hh_grammar_must_end(s));
    assert_false(hh_grammar_fits(s, " ", 1));
    hh_grammar_state_free(s);
    hh_grammar_free(g);
}

/* Many texts at once fit as each alone does, wherever the grammar stands. */
static void many_texts_at_once(void **unused) {
    (void)unused;
    static const char *const sorted[] = {
        "",    "\"", "\"a\"", "\"a\": ", "\"a\": 1", "\"a\": 1}", "\"a\": 1}}", ",",   ", \"",      "12", "12x", "1}",
        "1}}", "a",  "ab\"",  "t",       "true",     "trux",      "{",          "{\"", "{\"a\": [", "{{", "}",   "} "};
    enum { N = sizeof sorted / sizeof *sorted };
    hh_grammar_text texts[N];
    bool fits[N];
    hh_grammar *g;
    for (int i = 0; i < N; i++) texts[i] = (hh_grammar_text){sorted[i], strlen(sorted[i])};
    for (int i = 1; i < N; i++) assert_true(strcmp(sorted[i - 1], sorted[i]) < 0);
    assert_int_equal(hh_grammar_from_schema(&g, NULL, &err), HH_OK);
    hh_grammar_state *s = hh_grammar_start(g);
    for (const char *c = "{\"a\": {\"b\": 1}}"; *c; c++) {
        hh_grammar_fit_sorted(s, texts, N, fits);
        for (int i = 0; i < N; i++)
            assert_int_equal(fits[i], texts[i].n > 0 && hh_grammar_fits(s, sorted[i], texts[i].n));
        assert_true(hh_grammar_take(s, c, 1));
    }
    hh_grammar_fit_sorted(s, texts, N, fits); /* behind the end nothing fits */
    for (int i = 0; i < N; i++) assert_false(fits[i]);
    hh_grammar_state_free(s);
    hh_grammar_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_objects),
        cmocka_unit_test(schemas),
        cmocka_unit_test(what_cannot_be_said_is_refused),
        cmocka_unit_test(long_texts_stay_cheap),
        cmocka_unit_test(many_texts_at_once),
    };
    return cmocka_run_group_tests_name("grammar", tests, NULL, NULL);
}
