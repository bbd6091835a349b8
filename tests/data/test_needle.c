/* The needle tasks: RULER's own prompts, byte for byte; short lengths; counterfactual pairs. */
#include "data/corpus.h"
#include "data/jsonl.h"
#include "data/needle.h"
#include "data/needle_docs.h"
#include "data/ruler_words.h"
#include "data/nano.h"

#include <string.h>

typedef struct golden_run {
    hh_needles *needles;
    char task[32];
    int64_t length, seed, index, checked;
} golden_run;

static hh_code check_golden(void *context, const json_t *o, hh_error *e) {
    golden_run *g = context;
    const char *task, *prompt;
    HH_TRY(hh_jsonl_string(o, "task", &task, e));
    HH_TRY(hh_jsonl_string(o, "prompt", &prompt, e));
    int64_t length = json_integer_value(json_object_get(o, "length")),
            seed = json_integer_value(json_object_get(o, "seed"));
    if (strcmp(task, g->task) || length != g->length || seed != g->seed) {
        hh_needles_free(g->needles);
        hh_needle_options options = {.length = length, .seed = (uint32_t)seed};
        assert_ok(hh_needle_task_parse(task, &options.task, &err));
        HH_TRY(hh_needles_new(&g->needles, nano, &options, e));
        snprintf(g->task, sizeof g->task, "%s", task);
        g->length = length;
        g->seed = seed;
    }
    hh_needle_sample s;
    HH_TRY(hh_needles_next(g->needles, &s, e));
    assert_string_equal(s.prompt, prompt);
    assert_int_equal(s.n_tokens, json_integer_value(json_object_get(o, "tokens")));
    assert_int_equal(s.max_new, 128);
    const json_t *answers = json_object_get(o, "answers");
    assert_int_equal(s.n_answers, json_array_size(answers));
    for (int i = 0; i < s.n_answers; i++)
        assert_string_equal(s.answer[i], json_string_value(json_array_get(answers, i)));
    hh_needle_sample_release(&s);
    g->checked++;
    return HH_OK;
}

static void prompts_are_those_of_rulers_generator(void **state) {
    (void)state;
    char *text;
    size_t len;
    golden_run g = {0};
    assert_ok(hh_text_read("tests/data/golden/ruler.jsonl.gz", &text, &len, &err));
    assert_ok(hh_jsonl_each("ruler.jsonl.gz", text, len, 0, check_golden, &g, &err));
    assert_true(g.checked >= 30);
    hh_needles_free(g.needles);
    hh_free(text);
}

/* Against Python's sorted(set(...)) of all combinations. */
static void keys_are_in_pythons_order(void **state) {
    (void)state;
    hh_ruler_words w;
    hh_buf a = {0}, b = {0};
    hh_ruler_words_init(&w);
    assert_int_equal(w.n, 6171620);
    hh_ruler_words_get(&w, 0, &a);
    assert_string_equal(a.data, "Early-ATM");
    for (int64_t i = 1; i < w.n;
         i += i < 400000 ? 1 : 997) { /* "blue-eyed-..." among "blue-..." is in the first part */
        hh_buf_clear(&a);
        hh_buf_clear(&b);
        hh_ruler_words_get(&w, i - 1, &a);
        hh_ruler_words_get(&w, i, &b);
        assert_true(strcmp(a.data, b.data) < 0);
    }
    hh_buf_release(&a);
    hh_buf_release(&b);
    hh_ruler_words_release(&w);
}

static int64_t count_of(const char *text, const char *word) {
    int64_t n = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word)) n++;
    return n;
}

static void every_task_fits_or_says_why_at_short_lengths(void **state) {
    (void)state;
    for (int t = 0; t < HH_NEEDLE_TASKS; t++)
        for (int64_t length = 64; length <= 512; length *= 2) {
            hh_needles *n;
            hh_code code = hh_needles_new(
                &n, nano, &(hh_needle_options){.task = (hh_needle_task)t, .length = length, .seed = 3}, &err);
            if (code != HH_OK) {
                assert_int_equal(code, HH_EINVAL);
                assert_non_null(strstr(err.text, hh_needle_task_name((hh_needle_task)t)));
                assert_true(length < 256 || t == HH_NIAH_MULTIVALUE || t == HH_NIAH_MULTIQUERY ||
                            t == HH_NIAH_MULTIKEY_3 || t == HH_NIAH_MULTIKEY_1);
                continue;
            }
            for (int i = 0; i < 8; i++) {
                hh_needle_sample s;
                assert_ok(hh_needles_next(n, &s, &err));
                assert_true(s.n_tokens + s.max_new <= length);
                assert_true(s.depth >= 0 && s.depth <= 1);
                for (int a = 0; a < s.n_answers; a++) assert_int_equal(count_of(s.prompt, s.answer[a]), 1);
                hh_needle_sample_release(&s);
            }
            hh_needles_free(n);
        }
}

static void nano_sees_single_needles_in_books_at_its_own_length(void **state) {
    (void)state;
    static const hh_needle_task task[] = {HH_NIAH_SINGLE_2, HH_NIAH_BOOK};
    for (int t = 0; t < 2; t++) {
        hh_needles *n;
        assert_ok(hh_needles_new(&n, nano, &(hh_needle_options){.task = task[t], .length = 256, .seed = 1}, &err));
        for (int i = 0; i < 16; i++) {
            hh_needle_sample s;
            assert_ok(hh_needles_next(n, &s, &err));
            if (s.n_tokens <= 200)
                fail_msg(
                    "%s: %lld", hh_needle_task_name(task[t]),
                    (long long)s.n_tokens); /* most of the length is used, not kept for an answer of eight tokens */
            if (task[t] == HH_NIAH_BOOK) assert_true(hh_needle_value_held_out(s.answer[0]));
            hh_needle_sample_release(&s);
        }
        hh_needles_free(n);
    }
}

/* The words behind the head of a prompt, in which no needle stands. */
static const char *essay_of(const hh_needle_sample *s) {
    return strchr(s->prompt, '\n') + 1;
}

static void essays_begin_anywhere_when_that_is_asked_for(void **state) {
    (void)state;
    char begins[2][8][32] = {0};
    for (int anywhere = 0; anywhere < 2; anywhere++) {
        hh_needles *n;
        const hh_needle_options o = {.task = HH_NIAH_SINGLE_2, .length = 1024, .seed = 42, .anywhere = anywhere};
        assert_ok(hh_needles_new(&n, nano, &o, &err));
        for (int i = 0; i < 8; i++) {
            hh_needle_sample s;
            assert_ok(hh_needles_next(n, &s, &err));
            assert_true(s.n_tokens + s.max_new <= 1024);
            assert_true(s.n_tokens > 600);
            assert_int_equal(count_of(s.prompt, s.answer[0]), 1);
            /* a needle may stand before the first word */
            if (s.depth > 0) memcpy(begins[anywhere][i], essay_of(&s), sizeof begins[0][0] - 1);
            hh_needle_sample_release(&s);
        }
        hh_needles_free(n);
    }
    int same[2] = {0};
    for (int anywhere = 0; anywhere < 2; anywhere++)
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < i; j++)
                same[anywhere] += begins[anywhere][i][0] && !strcmp(begins[anywhere][i], begins[anywhere][j]);
    assert_true(same[0] > 0);
    assert_int_equal(same[1], 0);
}

static void check_pair(hh_needle_task task, int64_t length, hh_corruption c) {
    hh_needles *n;
    assert_ok(hh_needles_new(&n, nano, &(hh_needle_options){.task = task, .length = length, .seed = 5}, &err));
    for (int i = 0; i < 4; i++) {
        hh_pair p;
        assert_ok(hh_pair_from_needles(n, c, &p, &err));
        assert_int_equal(p.prompt.len, p.corrupt.len);
        assert_true(p.answer.len > 0);
        int64_t first = p.prompt.len, last = -1;
        for (int64_t j = 0; j < p.prompt.len; j++) {
            if (p.prompt.data[j] == p.corrupt.data[j]) continue;
            if (j < first) first = j;
            last = j;
        }
        assert_true(last >= first && last - first < 40); /* the needle's value or key, nothing else */
        if (c == HH_CORRUPT_VALUE) {
            assert_int_equal(p.wrong.len, p.answer.len);
            assert_memory_not_equal(p.wrong.data, p.answer.data, (size_t)p.answer.len * sizeof(int32_t));
        } else {
            assert_int_equal(p.wrong.len, 0);
        }
        hh_pair_release(&p);
    }
    hh_needles_free(n);
}

static void pairs_differ_in_the_evidence_alone(void **state) {
    (void)state;
    static const hh_needle_task probes[] = {HH_NIAH_SINGLE_1, HH_NIAH_SINGLE_2, HH_NIAH_SINGLE_3, HH_NIAH_MULTIKEY_2,
                                            HH_NIAH_BOOK};
    for (int i = 0; i < 5; i++)
        for (int c = 0; c < 2; c++) check_pair(probes[i], i == 2 ? 512 : 256, c ? HH_CORRUPT_KEY : HH_CORRUPT_VALUE);
    check_pair(HH_NIAH_MULTIKEY_1, 512, HH_CORRUPT_KEY);
}

static void a_users_pairs_are_read_and_refused_by_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"", "no pairs"},
        {"{\"prompt\": \"a\"}\n", "line 1: \"corrupt\" is missing"},
        {"\n{\"prompt\": 3, \"corrupt\": \"a\", \"answer\": \"b\"}\n", "line 2: \"prompt\" is not a string"},
        {"{\"prompt\": \"\", \"corrupt\": \"a\", \"answer\": \"b\"}", "\"prompt\" is empty"},
        {"{\"prompt\": \"1\", \"corrupt\": \"12\", \"answer\": \"b\"}", "has 1 tokens and \"corrupt\" 2"},
        {"{\"prompt\": \"1\", \"corrupt\": \"2\", \"answer\": \"3\", \"wrong\": \"44\"}",
         "has 1 tokens and \"wrong\" 2"},
        {"{\"prompt\": \"1\", \"corrupt\": \"2\", \"answer\": \"3\", \"wrnog\": \"4\"}", "\"wrnog\" is not a field"},
        {"{\"prompt\": \"1\", \"corrupt\": \"1\", \"answer\": \"3\"}", "\"prompt\" and \"corrupt\" are the same"},
        {"{\"prompt\": \"1\", \"corrupt\": \"2\", \"answer\": \"3\", \"wrong\": \"3\"}",
         "are the same; leave \"wrong\" out"},
        {"[1]", "not a JSON object"},
        {"{\"prompt\": ", "line 1: not JSON"},
    };
    hh_pair *p;
    int64_t n;
    const char *good =
        temp_text("pairs.jsonl",
                  "{\"prompt\": \"code 12 is\", \"corrupt\": \"code 34 is\", \"answer\": \" 12\", \"wrong\": \" 34\"}\n"
                  "\n{\"prompt\": \"x 1\", \"corrupt\": \"x 2\", \"answer\": \" 1\"}\n");
    assert_ok(hh_pairs_read(good, nano, &p, &n, &err));
    assert_int_equal(n, 2);
    assert_int_equal(p[0].wrong.len, p[0].answer.len);
    assert_int_equal(p[1].wrong.len, 0);
    hh_pairs_free(p, n);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(hh_pairs_parse("bad.jsonl", bad[i].text, strlen(bad[i].text), nano, &p, &n, &err), err.code,
                       "bad.jsonl", bad[i].word);
    assert_refused(hh_pairs_read(temp_path("none.jsonl"), nano, &p, &n, &err), HH_EIO, "none.jsonl");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_those_of_rulers_generator),
        cmocka_unit_test(keys_are_in_pythons_order),
        cmocka_unit_test(every_task_fits_or_says_why_at_short_lengths),
        cmocka_unit_test(nano_sees_single_needles_in_books_at_its_own_length),
        cmocka_unit_test(essays_begin_anywhere_when_that_is_asked_for),
        cmocka_unit_test(pairs_differ_in_the_evidence_alone),
        cmocka_unit_test(a_users_pairs_are_read_and_refused_by_line),
    };
    return cmocka_run_group_tests_name("data/needle", tests, open_nano, close_nano);
}
