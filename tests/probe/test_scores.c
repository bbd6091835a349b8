/* The table over many pairs: what is dropped, how roles combine, what select reads, and what a user sees. */
#include "support/support.h"

#include "base/progress.h"
#include "convert/heads.h"
#include "probe/prober.h"
#include "probe/random_model.h"
#include "probe/scores.h"
#include "support/gradcheck.h"

#include <string.h>

enum { N_PROMPT = 20, N_PAIRS = 3 };

static hh_pair make_pair(int seed, bool changes) {
    hh_pair p = {0};
    for (int j = 0; j < N_PROMPT; j++) {
        hh_ids_push(&p.prompt, (j * 7 + seed) % 53);
        hh_ids_push(&p.corrupt, changes && (j == 5 || j == 6) ? 51 - j : (j * 7 + seed) % 53);
    }
    hh_ids_push(&p.answer, 4);
    hh_ids_push(&p.answer, 9);
    return p;
}

/* Corruptions may raise or lower m; the table keeps pairs in which they lower it. Ask which those are. */
static void fill_pairs(const hh_model *m, hh_pair *pair, double least) {
    hh_error err = {0};
    hh_prober *p;
    assert_ok(hh_prober_new(&p, m, 32, 2, &err));
    for (int i = 0, seed = 0; i < N_PAIRS; seed++) {
        assert_true(seed < 1000);
        pair[i] = make_pair(seed, true);
        const hh_probe_pair one = {pair[i].prompt.data, pair[i].corrupt.data, pair[i].answer.data, NULL, N_PROMPT, 2};
        double clean, corrupt;
        assert_ok(hh_prober_load(p, &one, &clean, &corrupt, &err));
        if (clean - corrupt > least)
            i++;
        else
            hh_pair_release(&pair[i]);
    }
    hh_prober_free(p);
}

typedef struct fixture {
    hh_backend *be;
    hh_model *m;
    hh_pair kept[N_PAIRS], same[1];
    hh_scores *s;
} fixture;

static void probe_random_model(fixture *f) {
    hh_error err = {0};
    f->be = open_backend(NULL, 1);
    f->m = random_model(f->be, HH_QWEN3, 11);
    fill_pairs(f->m, f->kept, 0.02);
    f->same[0] = make_pair(3, false);
    const hh_capability capability[] = {{"changed", f->kept, N_PAIRS}, {"unchanged", f->same, 1}};
    const hh_probe_options o = {.senders = 4, .least_effect = 0.01};
    hh_progress_silence(true);
    assert_ok(hh_probe(&f->s, f->m, capability, 2, &o, &err));
}

static void release_fixture(fixture *f) {
    hh_scores_free(f->s);
    for (int i = 0; i < N_PAIRS; i++) hh_pair_release(&f->kept[i]);
    hh_pair_release(&f->same[0]);
    hh_model_close(f->m);
    hh_backend_close(f->be);
}

static void pairs_without_effect_are_dropped(void **state) {
    (void)state;
    fixture f;
    probe_random_model(&f);
    const hh_capability_scores *changed = &f.s->capability[0], *same = &f.s->capability[1];
    assert_int_equal(changed->used, N_PAIRS);
    assert_int_equal(same->used, 0);
    assert_int_equal(same->n_dropped, 1);
    assert_near(same->dropped[0].clean, same->dropped[0].corrupt, 0);
    for (int64_t h = 0; h < 8; h++) assert_near(same->combined[h], 0, 0);
    release_fixture(&f);
}

/* Means over pairs equal the pairs' own scores; the combination follows its rule. */
static void the_table_is_the_mean_of_its_pairs(void **state) {
    (void)state;
    fixture f;
    probe_random_model(&f);
    const hh_capability_scores *c = &f.s->capability[0];
    hh_error err = {0};
    hh_prober *p;
    double mean[8] = {0}, ie[8], clean, corrupt;
    assert_ok(hh_prober_new(&p, f.m, 32, 2, &err));
    for (int i = 0; i < N_PAIRS; i++) {
        const hh_pair *q = &f.kept[i];
        const hh_probe_pair one = {q->prompt.data, q->corrupt.data, q->answer.data, NULL, N_PROMPT, 2};
        assert_ok(hh_prober_load(p, &one, &clean, &corrupt, &err));
        hh_prober_receivers(p, ie);
        for (int h = 0; h < 8; h++) mean[h] += ie[h] / N_PAIRS;
    }
    hh_prober_free(p);
    double lo = INFINITY, hi = -INFINITY;
    int64_t candidates = 0;
    for (int h = 0; h < 8; h++) {
        assert_near(c->receiver[h], mean[h], 1e-6);
        double stronger = fmax(c->receiver[h], c->sender[h]);
        assert_near(c->combined[h], fmax(stronger, 0) * c->kappa[h], 1e-12);
        assert_true(c->kappa[h] >= 0 && c->kappa[h] <= 1);
        candidates += c->candidate[h];
        if (!c->candidate[h]) assert_near(c->sender[h], 0, 0);
        lo = fmin(lo, f.s->score[h]);
        hi = fmax(hi, f.s->score[h]);
    }
    assert_int_equal(candidates, 4);
    assert_near(lo, 0, 1e-12);
    assert_near(hi, 0.5, 1e-12); /* one of two capabilities had a kept pair */
    release_fixture(&f);
}

static void files_are_written_and_read(void **state) {
    (void)state;
    fixture f;
    probe_random_model(&f);
    hh_error err = {0};
    const char *json = temp_path("heads.json"), *html = temp_path("heads.html");
    assert_ok(hh_scores_write_json(f.s, json, "random <model>", 20, 0, &err));
    assert_ok(hh_scores_write_html(f.s, html, "random <model>", &err));
    hh_heads heads = {0};
    assert_ok(hh_heads_read(&heads, json, &err));
    assert_int_equal(heads.n_layers, 2);
    assert_int_equal(heads.n_heads, 4);
    assert_int_equal(heads.n_kv_heads, 2);
    for (int h = 0; h < 8; h++) assert_near(heads.score[h], f.s->score[h], 1e-9);
    hh_heads_release(&heads);
    hh_buf page = read_whole(html);
    assert_non_null(strstr(page.data, "<svg"));
    assert_non_null(strstr(page.data, "random &lt;model&gt;"));
    assert_null(strstr(page.data, "<script src"));
    hh_buf_release(&page);
    release_fixture(&f);
}

static void pairs_that_do_not_fit_are_refused(void **state) {
    (void)state;
    hh_error err = {0};
    hh_backend *be = open_backend(NULL, 1);
    hh_model *m = random_model(be, HH_QWEN3, 11);
    const hh_probe_options o = {.senders = 0};
    hh_scores *s;
    hh_pair pair = make_pair(0, true);
    const hh_capability c = {"mine", &pair, 1};
    hh_ids_push(&pair.corrupt, 1);
    assert_refused(hh_probe(&s, m, &c, 1, &o, &err), HH_EINVAL, "mine", "pair 0", "20", "21");
    pair.corrupt.len--;
    pair.prompt.data[3] = 53;
    assert_refused(hh_probe(&s, m, &c, 1, &o, &err), HH_EINVAL, "mine", "token 53", "53");
    hh_pair_release(&pair);
    hh_model_close(m);
    hh_backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_without_effect_are_dropped), cmocka_unit_test(the_table_is_the_mean_of_its_pairs),
        cmocka_unit_test(files_are_written_and_read), cmocka_unit_test(pairs_that_do_not_fit_are_refused)};
    return cmocka_run_group_tests_name("probe scores", tests, NULL, NULL);
}
