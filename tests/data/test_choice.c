/* Choice items: what is read, what is refused, and how texts become tokens. */
#include "data/choice.h"
#include "data/nano.h"

#include <string.h>

static void three_kinds_are_read(void **state) {
    (void)state;
    hh_choice_set s;
    assert_ok(hh_choice_read(&s, "tests/eval/golden/multiple.jsonl", 0, &err));
    assert_int_equal(s.kind, HH_CHOICE_MULTIPLE);
    assert_int_equal(s.n, 4);
    assert_int_equal(s.item[1].gold, 1);
    assert_string_equal(s.item[0].text[0], " honey");
    assert_int_equal(s.item[1].chars[2], 3); /* two of them take two bytes each */
    assert_int_equal(s.item[1].bytes[2], 5);
    hh_choice_release(&s);
    assert_ok(hh_choice_read(&s, "tests/eval/golden/contexts.jsonl", 1, &err));
    assert_int_equal(s.kind, HH_CHOICE_CONTEXTS);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.item[0].text[0], s.item[0].text[1]);
    assert_string_not_equal(s.item[0].context[0], s.item[0].context[1]);
    hh_choice_release(&s);
    assert_ok(hh_choice_read(&s, "tests/eval/golden/lastword.jsonl", 0, &err));
    assert_int_equal(s.kind, HH_CHOICE_CONTINUATION);
    assert_int_equal(s.item[2].n, 1);
    hh_choice_release(&s);
}

static void bad_lines_are_refused_with_file_line_and_field(void **state) {
    (void)state;
    static const char good[] = "{\"query\": \"q\", \"choices\": [\"a\", \"b\"], \"gold\": 0}\n";
    static const struct {
        const char *line, *word;
    } bad[] = {
        {"{\"query\": \"q\", \"choices\": [\"a\", \"b\"], \"gold\": 2}", "\"gold\" is 2"},
        {"{\"query\": \"q\", \"choices\": [\"a\", \"b\"], \"gold\": -1}", "\"gold\" is -1"},
        {"{\"query\": \"q\", \"choices\": [\"a\", \"b\"]}", "\"gold\" is missing"},
        {"{\"choices\": [\"a\", \"b\"], \"gold\": 0}", "\"query\" is missing"},
        {"{\"query\": \"q\", \"choices\": [\"a\"], \"gold\": 0}", "\"choices\" is not an array of 2"},
        {"{\"query\": \"q\", \"choices\": [\"a\", 3], \"gold\": 0}", "\"choices\"[1] is not a string"},
        {"{\"query\": \"q\", \"choices\": [\"a\", \"\"], \"gold\": 0}", "\"choices\"[1]"},
        {"{\"context\": \"c\", \"continuation\": \"d\"}", "one file holds one kind"},
        {"{\"question\": \"q\"}", "\"context\" is there"},
        {"{\"query\": \"q\", \"query\": \"r\"}", "not JSON"},
        {"nonsense", "not JSON"},
    };
    hh_choice_set s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = hh_sprintf("%s\n%s\n", good, bad[i].line);
        assert_refused(hh_choice_parse(&s, "bad.jsonl", text, strlen(text), 0, &err), HH_EFORMAT, "bad.jsonl, line 3",
                       bad[i].word);
        assert_ok(hh_choice_parse(&s, "bad.jsonl", text, strlen(text), 1, &err)); /* not looked at */
        hh_choice_release(&s);
        hh_free(text);
    }
    assert_refused(hh_choice_parse(&s, "empty.jsonl", " \n\n", 3, 0, &err), HH_EFORMAT, "empty.jsonl", "no items");
}

/* The text of ids[lo, hi). */
static char *text_of(const hh_ids *ids, int64_t lo, int64_t hi) {
    hh_buf b = {0};
    hh_buf_puts(&b, "");
    assert_ok(hh_tokenizer_decode(nano, ids->data + lo, hi - lo, true, &b, &err));
    return b.data;
}

static void check_split(const char *context, const char *text, const char *scored) {
    hh_ids ids = {0};
    int64_t n;
    bool cut;
    assert_ok(hh_choice_encode(nano, context, text, 100, &ids, &n, &cut, &err));
    assert_false(cut);
    char *got = text_of(&ids, n, ids.len);
    assert_string_equal(got, scored);
    hh_free(got);
    hh_ids_release(&ids);
}

static void white_space_belongs_to_what_is_scored(void **state) {
    (void)state;
    check_split("The sky is", " blue.", " blue.");
    check_split("The sky is ", " blue.", "  blue.");
    check_split("The sky is\n", " blue.", "\n blue.");
    check_split("", " blue.", " blue."); /* behind the end token, for nothing else can predict it */
}

static void long_contexts_are_cut_on_the_left(void **state) {
    (void)state;
    hh_ids whole = {0}, ids = {0};
    int64_t n, m;
    bool cut;
    const char *context = "one two three four five six seven eight nine ten eleven twelve", *text = " thirteen.";
    assert_ok(hh_choice_encode(nano, context, text, 1000, &whole, &n, &cut, &err));
    assert_ok(hh_choice_encode(nano, context, text, whole.len - 4, &ids, &m, &cut, &err));
    assert_true(cut);
    assert_int_equal(ids.len, whole.len - 3); /* one token more than the model reads: the last one is only predicted */
    assert_int_equal(ids.len - m, whole.len - n);
    assert_memory_equal(ids.data, whole.data + 3, (size_t)ids.len * sizeof(int32_t));
    hh_ids_release(&whole);
    hh_ids_release(&ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_kinds_are_read),
        cmocka_unit_test(bad_lines_are_refused_with_file_line_and_field),
        cmocka_unit_test(white_space_belongs_to_what_is_scored),
        cmocka_unit_test(long_contexts_are_cut_on_the_left),
    };
    return cmocka_run_group_tests_name("data/choice", tests, open_nano, close_nano);
}
