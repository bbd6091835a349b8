/* Selection: every strategy on tables whose right answer is known, the reasons in the plan, budgets, refusals, and the
 * files. */
#include "convert/select.h"
#include "support/support.h"

#include <string.h>

static hh_error err;

enum { L = 4, H = 8, G = 4, D = 32 };

typedef struct table {
    hh_heads h;
    double score[L * H], mean_ie[L * H], attribution[L * H];
} table;

/* Two heads score, one more has an indirect effect, one more an attribution; the rest are equal. */
static hh_heads *few_heads(table *t) {
    *t = (table){0};
    t->h = (hh_heads){L, H, G, D, 1, t->score, t->mean_ie, t->attribution};
    t->score[3 * H + 2] = 1;
    t->score[3 * H + 5] = 0.5;
    t->mean_ie[2 * H + 1] = 0.004;
    t->attribution[1 * H + 7] = 0.003;
    return &t->h;
}

static void expect_kept(const hh_plan *p, int64_t l, int64_t h, hh_keep_rule rule) {
    if (p->rule[l * H + h] != rule)
        fail_msg("layer %d head %d: rule '%s' where '%s' was expected", (int)l, (int)h,
                 hh_keep_rule_name(p->rule[l * H + h]), hh_keep_rule_name(rule));
}

static hh_plan choose(hh_heads *h, hh_select_options o) {
    hh_plan p;
    assert_ok(hh_select(&p, h, &o, &err));
    return p;
}

static void test_global_says_which_measure_decided(void **state) {
    (void)state;
    table t;
    hh_plan p = choose(few_heads(&t), (hh_select_options){HH_SELECT_GLOBAL, .heads = 5});
    assert_int_equal(hh_plan_count(&p), 5);
    expect_kept(&p, 3, 2, HH_KEEP_SCORE);
    expect_kept(&p, 3, 5, HH_KEEP_SCORE);
    expect_kept(&p, 2, 1, HH_KEEP_MEAN_IE);
    expect_kept(&p, 1, 7, HH_KEEP_ATTRIBUTION);
    expect_kept(&p, 0, 0, HH_KEEP_ORDER);
    hh_plan_release(&p);
    p = choose(&t.h, (hh_select_options){HH_SELECT_GLOBAL, .heads = L * H});
    expect_kept(&p, 3, 2, HH_KEEP_ALL);
    hh_plan_release(&p);
}

static void test_ratio_is_never_exceeded(void **state) {
    (void)state;
    table t;
    hh_plan p = choose(few_heads(&t), (hh_select_options){HH_SELECT_GLOBAL, .ratio = 7});
    assert_int_equal(hh_plan_count(&p), 4);
    hh_plan_release(&p);
    p = choose(&t.h, (hh_select_options){HH_SELECT_GLOBAL, .ratio = 8}); /* 32 / 9 = 3.6 */
    assert_int_equal(hh_plan_count(&p), 3);
    hh_plan_release(&p);
}

static void test_min1_leaves_no_layer_empty(void **state) {
    (void)state;
    table t;
    hh_plan p = choose(few_heads(&t), (hh_select_options){HH_SELECT_GLOBAL_MIN1, .heads = 5});
    assert_int_equal(hh_plan_count(&p), 5);
    for (int l = 0; l < L; l++) {
        int n = 0;
        for (int h = 0; h < H; h++) n += hh_plan_keeps(&p, l, h);
        assert_true(n >= 1);
    }
    expect_kept(&p, 3, 2, HH_KEEP_SCORE);
    expect_kept(&p, 3, 5, HH_KEEP_SCORE);
    hh_plan_release(&p);
    for (int h = 0; h < H; h++) t.score[3 * H + h] = 1 + h; /* all good heads in one layer */
    p = choose(&t.h, (hh_select_options){HH_SELECT_GLOBAL_MIN1, .heads = 5});
    expect_kept(&p, 3, 7, HH_KEEP_SCORE);
    expect_kept(&p, 3, 6, HH_KEEP_SCORE);
    expect_kept(&p, 3, 5, HH_KEEP_NOT);
    expect_kept(&p, 2, 1, HH_KEEP_MIN1);
    expect_kept(&p, 1, 7, HH_KEEP_MIN1);
    expect_kept(&p, 0, 0, HH_KEEP_MIN1);
    hh_plan_release(&p);
}

static void test_layer_gives_every_layer_its_quota(void **state) {
    (void)state;
    table t;
    hh_plan p = choose(few_heads(&t), (hh_select_options){HH_SELECT_LAYER, .heads = 5});
    for (int l = 0; l < L; l++) {
        int n = 0;
        for (int h = 0; h < H; h++) n += hh_plan_keeps(&p, l, h);
        assert_int_equal(n, l == 3 ? 2 : 1); /* the fifth goes where the next head is best */
    }
    expect_kept(&p, 3, 2, HH_KEEP_QUOTA);
    expect_kept(&p, 3, 5, HH_KEEP_QUOTA);
    expect_kept(&p, 2, 1, HH_KEEP_QUOTA);
    hh_plan_release(&p);
}

/* One key/value head whose two queries score together more than any single query is worth more to `kv` than the best
 * single head. */
static void test_kv_pays_a_group_once(void **state) {
    (void)state;
    table t;
    few_heads(&t);
    t.score[0] = t.score[1] = 0.7;
    hh_plan p = choose(&t.h, (hh_select_options){HH_SELECT_KV, .kv_bytes = 2 * D * 2});
    assert_int_equal(hh_plan_kv_count(&p), 1);
    assert_int_equal(hh_plan_count(&p), 2);
    expect_kept(&p, 0, 0, HH_KEEP_SCORE);
    expect_kept(&p, 0, 1, HH_KEEP_KV_GROUP);
    hh_plan_release(&p);
    p = choose(&t.h, (hh_select_options){HH_SELECT_KV, .heads = 5}); /* whole groups of two: four heads */
    assert_int_equal(hh_plan_count(&p), 4);
    assert_true(hh_plan_keeps(&p, 3, 2) && hh_plan_keeps(&p, 3, 3));
    hh_plan_release(&p);
}

static void test_budget_in_bytes_is_kept(void **state) {
    (void)state;
    table t;
    few_heads(&t);
    for (int s = HH_SELECT_GLOBAL; s < HH_SELECT_STRATEGIES; s++) {
        int64_t bytes = 4 * G * 2 * D * 2; /* room for what any strategy needs at least */
        hh_plan p = choose(&t.h, (hh_select_options){(hh_strategy)s, .kv_bytes = bytes});
        assert_true(hh_plan_count(&p) > 0);
        assert_true(hh_plan_cache_bytes(&p, HH_PLAN_CACHE_VALUE_BYTES) <= (double)bytes);
        hh_plan_release(&p);
    }
    hh_select_options o = {HH_SELECT_GLOBAL_MIN1, .kv_bytes = 3 * 2 * D * 2};
    hh_plan p;
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "--kv-bytes 384", "512");
}

static void test_random_repeats_and_excludes(void **state) {
    (void)state;
    table t;
    hh_plan causal = choose(few_heads(&t), (hh_select_options){HH_SELECT_GLOBAL, .heads = 4});
    for (uint64_t seed = 0; seed < 20; seed++) {
        hh_select_options o = {HH_SELECT_GLOBAL_RANDOM, .heads = 4, .seed = seed, .exclude = &causal};
        hh_plan a = choose(&t.h, o), b = choose(&t.h, o);
        assert_memory_equal(a.rule, b.rule, L * H);
        assert_int_equal(hh_plan_count(&a), 4);
        for (int i = 0; i < L * H; i++) assert_false(a.rule[i] && causal.rule[i]);
        hh_plan_release(&a);
        hh_plan_release(&b);
        a = choose(&t.h, (hh_select_options){HH_SELECT_LAYER_RANDOM, .heads = 8, .seed = seed});
        for (int l = 0; l < L; l++) {
            int n = 0;
            for (int h = 0; h < H; h++) n += hh_plan_keeps(&a, l, h);
            assert_int_equal(n, 2);
        }
        hh_plan_release(&a);
    }
    hh_plan p;
    hh_select_options o = {HH_SELECT_GLOBAL_RANDOM, .heads = 29, .exclude = &causal};
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "only 28 heads", "29");
    o = (hh_select_options){HH_SELECT_GLOBAL, .heads = 4, .exclude = &causal};
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "random");
    hh_plan_release(&causal);
}

static void test_fixed_and_layerwise(void **state) {
    (void)state;
    table t;
    hh_plan p = choose(few_heads(&t), (hh_select_options){HH_SELECT_FIXED, .heads = 6});
    for (int l = 0; l < L; l++) expect_kept(&p, l, 0, HH_KEEP_FIXED);
    expect_kept(&p, 1, 1, HH_KEEP_FIXED);
    expect_kept(&p, 2, 1, HH_KEEP_NOT);
    hh_plan_release(&p);
    p = choose(&t.h, (hh_select_options){HH_SELECT_LAYERWISE, .ratio = 1});
    for (int h = 0; h < H; h++) {
        expect_kept(&p, 3, h, HH_KEEP_LAYER);
        expect_kept(&p, 2, h, HH_KEEP_LAYER);
        expect_kept(&p, 0, h, HH_KEEP_NOT);
    }
    hh_plan_release(&p);
    hh_select_options o = {HH_SELECT_LAYERWISE, .heads = 4};
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "4 heads", "layerwise", "8");
}

static void test_budgets_that_make_no_sense(void **state) {
    (void)state;
    table t;
    hh_plan p;
    few_heads(&t);
    hh_select_options o = {.strategy = HH_SELECT_GLOBAL};
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "exactly one budget");
    o = (hh_select_options){HH_SELECT_GLOBAL, .heads = 3, .ratio = 2};
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "exactly one budget");
    o = (hh_select_options){HH_SELECT_GLOBAL, .heads = 33};
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "33", "32");
    o = (hh_select_options){HH_SELECT_GLOBAL, .ratio = 1000};
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "0 heads");
    o = (hh_select_options){HH_SELECT_GLOBAL_MIN1, .heads = 3};
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "3 heads", "4");
    t.h.n_kv_heads = 0;
    o = (hh_select_options){HH_SELECT_KV, .heads = 4};
    assert_refused(hh_select(&p, &t.h, &o, &err), HH_EINVAL, "--model");
}

static void test_plan_survives_its_file(void **state) {
    (void)state;
    table t;
    hh_plan p = choose(few_heads(&t), (hh_select_options){HH_SELECT_GLOBAL_MIN1, .heads = 6, .seed = 7}), q;
    const char *path = temp_path("plan.json");
    assert_ok(hh_plan_write(&p, path, &err));
    assert_ok(hh_plan_read(&q, path, &err));
    assert_memory_equal(p.rule, q.rule, L * H);
    assert_string_equal(q.strategy, "global-min1");
    assert_string_equal(q.budget, "heads 6");
    assert_true(q.seed == 7 && q.n_kv_heads == G && q.head_dim == D);
    hh_plan_release(&p);
    hh_plan_release(&q);
}

static void test_plan_by_hand(void **state) {
    (void)state;
    const char *text = "{\"layers\": 2, \"heads\": 3, \"full_attention_heads\": [[2, 0], []]}";
    hh_plan p;
    assert_ok(hh_plan_parse(&p, "hand.json", text, strlen(text), &err));
    assert_true(hh_plan_keeps(&p, 0, 0) && !hh_plan_keeps(&p, 0, 1) && hh_plan_keeps(&p, 0, 2) &&
                !hh_plan_keeps(&p, 1, 0));
    hh_plan_release(&p);
}

static void refuse_plan(const char *text, const char *word) {
    hh_plan p;
    assert_refused(hh_plan_parse(&p, "bad.json", text, strlen(text), &err), HH_EFORMAT, "bad.json", word);
}

static void test_damaged_plans_are_refused(void **state) {
    (void)state;
    refuse_plan("", "JSON");
    refuse_plan("[]", "object");
    refuse_plan("{\"heads\": 3, \"full_attention_heads\": [[]]}", "'layers'");
    refuse_plan("{\"layers\": 1.5, \"heads\": 3, \"full_attention_heads\": [[]]}", "'layers'");
    refuse_plan("{\"layers\": 1, \"heads\": 100000000000, \"full_attention_heads\": [[]]}", "'heads'");
    refuse_plan("{\"layers\": 2, \"heads\": 3, \"full_attention_heads\": [[0]]}", "2 layers");
    refuse_plan("{\"layers\": 1, \"heads\": 3, \"full_attention_heads\": [[3]]}", "[0, 3)");
    refuse_plan("{\"layers\": 1, \"heads\": 3, \"full_attention_heads\": [[-1]]}", "[0, 3)");
    refuse_plan("{\"layers\": 1, \"heads\": 3, \"full_attention_heads\": [[\"1\"]]}", "[0, 3)");
    refuse_plan("{\"layers\": 1, \"heads\": 3, \"full_attention_heads\": [[1, 1]]}", "twice");
    refuse_plan(
        "{\"layers\": 1, \"heads\": 3, \"full_attention_heads\": [[1]], \"kept\": [{\"layer\": 0, \"head\": 2}]}",
        "'kept'");
}

#define ROW "[[0.5, 0], [0, 0]]"
#define CAPABILITY(receiver)                                                                                           \
    "{\"name\": \"c\", \"receiver\": " receiver ", \"sender\": " ROW ", \"attribution\": " ROW "}"
#define TABLE(score, caps) "{\"layers\": 2, \"heads\": 2, \"score\": " score ", \"capabilities\": [" caps "]}"

static void refuse_heads(const char *text, const char *word, const char *more) {
    hh_heads h;
    assert_refused(hh_heads_parse(&h, "bad.json", text, strlen(text), &err), HH_EFORMAT, "bad.json", word, more);
}

static void test_heads_are_averaged_over_capabilities(void **state) {
    (void)state;
    const char *text = TABLE("[[1, 0], [0, 0]]", CAPABILITY("[[0.1, 0.2], [0, -1]]") ", " CAPABILITY(ROW));
    hh_heads h;
    assert_ok(hh_heads_parse(&h, "heads.json", text, strlen(text), &err));
    assert_int_equal(h.n_kv_heads, 0);
    assert_true(h.mean_ie[0] == 0.5 && h.mean_ie[1] == 0.1 && h.mean_ie[3] == 0); /* the stronger role, then the mean */
    assert_true(h.attribution[0] == 0.5 && h.score[0] == 1);
    hh_config c = {.n_layers = 2, .n_heads = 3};
    assert_refused(hh_heads_bind(&h, "heads.json", &c, &err), HH_EINVAL, "heads.json", "2 heads", "3");
    hh_heads_release(&h);
}

static void test_damaged_heads_are_refused(void **state) {
    (void)state;
    refuse_heads("{", "JSON", "line");
    refuse_heads("{\"layers\": 2, \"layers\": 2}", "JSON", "duplicate");
    refuse_heads("{\"layers\": 0, \"heads\": 2}", "'layers'", "0");
    refuse_heads("{\"layers\": 2, \"heads\": 2, \"kv_heads\": 3}", "'kv_heads'", "3");
    refuse_heads(TABLE("[[1, 0]]", CAPABILITY(ROW)), "'score'", "2 layers");
    refuse_heads(TABLE("[[1, 0], [1]]", CAPABILITY(ROW)), "'score'", "row 1");
    refuse_heads(TABLE("[[1, 0], [1, NaN]]", CAPABILITY(ROW)), "JSON", "NaN");
    refuse_heads(TABLE("[[1, 0], [1, null]]", CAPABILITY(ROW)), "layer 1, head 1", "not a finite number");
    refuse_heads(TABLE("[[1, 0], [1, 1e999]]", CAPABILITY(ROW)), "JSON", "overflow");
    refuse_heads(TABLE("[[1, 0], [1, 0]]", ""), "'capabilities'", "1 to");
    refuse_heads(TABLE("[[1, 0], [1, 0]]", "{}"), "capability 0", "name");
    refuse_heads(TABLE("[[1, 0], [1, 0]]", CAPABILITY("[[1, 0], [0, \"x\"]]")), "capability 'c'", "receiver");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_global_says_which_measure_decided),
        cmocka_unit_test(test_ratio_is_never_exceeded),
        cmocka_unit_test(test_min1_leaves_no_layer_empty),
        cmocka_unit_test(test_layer_gives_every_layer_its_quota),
        cmocka_unit_test(test_kv_pays_a_group_once),
        cmocka_unit_test(test_budget_in_bytes_is_kept),
        cmocka_unit_test(test_random_repeats_and_excludes),
        cmocka_unit_test(test_fixed_and_layerwise),
        cmocka_unit_test(test_budgets_that_make_no_sense),
        cmocka_unit_test(test_plan_survives_its_file),
        cmocka_unit_test(test_plan_by_hand),
        cmocka_unit_test(test_damaged_plans_are_refused),
        cmocka_unit_test(test_heads_are_averaged_over_capabilities),
        cmocka_unit_test(test_damaged_heads_are_refused),
    };
    return cmocka_run_group_tests_name("convert/select", tests, NULL, NULL);
}
