/* What the demo has shown: sentences, a table, summary.json, and one page with everything on it. */
#include "base/filemap.h"
#include "convert/plan.h"
#include "demo/demo.h"
#include "format/json.h"
#include "report/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[HH_DEMO_MODELS] = {"teacher", "causal", "random"};

static const hh_ruler_cell *cell(const hh_demo *d, int model, int64_t length) {
    return hh_ruler_cell_at(&d->needles, model, 0, length);
}

void hh_demo_table(const hh_demo *d, bool page, hh_buf *out) {
    static const char *const rows[HH_DEMO_MODELS] = {"teacher", "causal hybrid", "random control"};
    hh_cells t = {.cols = 2 + HH_DEMO_LENGTHS};
    hh_cells_add(&t, "needles found");
    for (int i = 0; i < HH_DEMO_LENGTHS; i++) hh_cells_add(&t, "%" PRId64 " tokens", d->o.length[i]);
    hh_cells_add(&t, "cache bytes a token");
    for (int m = 0; m < HH_DEMO_MODELS; m++) {
        hh_cells_add(&t, "%s", rows[m]);
        for (int i = 0; i < HH_DEMO_LENGTHS; i++)
            hh_cells_add(&t, "%.2f ± %.2f", cell(d, m, i)->accuracy, cell(d, m, i)->error);
        hh_cells_add(&t, "%.0f", d->cache_bytes[m]);
    }
    hh_cells_print(&t, page, out);
    hh_cells_release(&t);
}

/* What the two hybrids show side by side, of any run. */
static const char *conclusion(double causal, double random) {
    if (causal - random >= 0.5) return "which heads stay is what decides";
    return causal < 0.5 ? "this run was too short to tell them apart" : "this run does not tell them apart";
}

void hh_demo_sentences(const hh_demo *d, hh_buf *out) {
    const int last = HH_DEMO_LENGTHS - 1;
    hh_buf_printf(out,
                  "The teacher finds %.0f %% of the needles at the %" PRId64
                  " tokens it was trained on, and %.0f %% at %" PRId64 ".\n",
                  100 * cell(d, HH_DEMO_TEACHER, 0)->accuracy, d->o.length[0],
                  100 * cell(d, HH_DEMO_TEACHER, last)->accuracy, d->o.length[last]);
    hh_buf_printf(out,
                  "The hybrid that keeps full attention in the %" PRId64
                  " heads that matter finds %.0f %% and %.0f %% there, with %.0f bytes of cache a "
                  "token instead of %.0f, after %.2f M tokens of transfer.\n",
                  d->o.heads, 100 * cell(d, HH_DEMO_CAUSAL, 0)->accuracy, 100 * cell(d, HH_DEMO_CAUSAL, last)->accuracy,
                  d->cache_bytes[HH_DEMO_CAUSAL], d->cache_bytes[HH_DEMO_TEACHER], (double)d->trained_tokens / 1e6);
    hh_buf_printf(
        out,
        "As many other heads, trained on the same batches, find %.0f %% and %.0f %%: %s (heads drawn freely from all "
        "would often hold one of those that matter, so the control is drawn from the rest).\n",
        100 * cell(d, HH_DEMO_RANDOM, 0)->accuracy, 100 * cell(d, HH_DEMO_RANDOM, last)->accuracy,
        conclusion(cell(d, HH_DEMO_CAUSAL, last)->accuracy, cell(d, HH_DEMO_RANDOM, last)->accuracy));
}

static json_t *kept_heads(const hh_plan *p) {
    json_t *list = json_array();
    for (int64_t i = 0; i < p->n_layers * p->n_heads; i++)
        if (hh_plan_keeps(p, i / p->n_heads, i % p->n_heads))
            json_array_append_new(list,
                                  json_pack("[I, I]", (json_int_t)(i / p->n_heads), (json_int_t)(i % p->n_heads)));
    return list;
}

static json_t *summary(const hh_demo *d) {
    json_t *o = json_object(), *lengths = json_array(), *accuracy = json_object(), *error = json_object(),
           *cache = json_object();
    for (int i = 0; i < HH_DEMO_LENGTHS; i++) json_array_append_new(lengths, json_integer(d->o.length[i]));
    for (int m = 0; m < HH_DEMO_MODELS; m++) {
        json_t *a = json_array(), *e = json_array();
        for (int i = 0; i < HH_DEMO_LENGTHS; i++) {
            json_array_append_new(a, json_real(cell(d, m, i)->accuracy));
            json_array_append_new(e, json_real(cell(d, m, i)->error));
        }
        json_object_set_new(accuracy, names[m], a);
        json_object_set_new(error, names[m], e);
        json_object_set_new(cache, names[m], json_real(d->cache_bytes[m]));
    }
    json_object_set_new(o, "lengths", lengths);
    json_object_set_new(o, "accuracy", accuracy);
    json_object_set_new(o, "stderr", error);
    json_object_set_new(o, "samples", json_integer(d->o.samples));
    json_object_set_new(o, "seconds", json_real(d->seconds));
    json_object_set_new(o, "kept_heads", kept_heads(&d->plan[HH_DEMO_CAUSAL]));
    json_object_set_new(o, "random_heads", kept_heads(&d->plan[HH_DEMO_RANDOM]));
    json_object_set_new(o, "cache_bytes_per_token", cache);
    json_object_set_new(o, "trained_tokens", json_integer(d->trained_tokens));
    json_object_set_new(o, "seed", json_integer((json_int_t)d->o.seed));
    return o;
}

static void curves(const hh_demo *d, hh_buf *page) {
    static const char *const title[] = {"align: mean squared error of the attention outputs",
                                        "distil: divergence from the teacher, nats a token"};
    for (int s = 0; s < 2; s++) {
        const hh_demo_curve *c = &d->curve[s];
        const hh_curve two[] = {{.name = "causal", .x = c->step, .y = c->loss[0], .n = c->n},
                                {.name = "random", .x = c->step, .y = c->loss[1], .n = c->n}};
        hh_page_chart(page, title[s], "step", "loss", false, two, 2);
    }
}

/* Accuracy by length, and found needles by depth and length for each model. */
static void needle_maps(const hh_demo *d, hh_buf *page) {
    enum { DEPTHS = 8 };
    static const char *const depth_label[DEPTHS] = {"0-12 %",  "12-25 %", "25-38 %", "38-50 %",
                                                    "50-62 %", "62-75 %", "75-88 %", "88-100 %"};
    char label[HH_DEMO_LENGTHS][32];
    const char *length_label[HH_DEMO_LENGTHS];
    for (int i = 0; i < HH_DEMO_LENGTHS; i++) {
        snprintf(label[i], sizeof label[i], "%" PRId64, d->o.length[i]);
        length_label[i] = label[i];
    }
    for (int m = 0; m < HH_DEMO_MODELS; m++) {
        double value[DEPTHS * HH_DEMO_LENGTHS];
        for (int i = 0; i < HH_DEMO_LENGTHS; i++) {
            double sum[DEPTHS] = {0}, n[DEPTHS] = {0};
            const hh_ruler_cell *c = cell(d, m, i);
            for (int64_t k = 0; k < c->n; k++) {
                int bin = (int)(c->sample[k].depth * DEPTHS);
                bin = bin < 0 ? 0 : bin >= DEPTHS ? DEPTHS - 1 : bin;
                sum[bin] += c->sample[k].score;
                n[bin] += 1;
            }
            for (int b = 0; b < DEPTHS; b++) value[b * HH_DEMO_LENGTHS + i] = sum[b] / n[b]; /* 0/0: blank */
        }
        const hh_heatmap map = {.title = names[m],
                                .row_axis = "depth of the needle",
                                .col_axis = "tokens",
                                .rows = DEPTHS,
                                .cols = HH_DEMO_LENGTHS,
                                .value = value,
                                .row_label = depth_label,
                                .col_label = length_label,
                                .hi = 1};
        hh_page_heatmap(page, &map);
    }
}

/* Every kept head of both plans, with the rule that kept it. */
static void plan_table(const hh_demo *d, hh_buf *page) {
    hh_cells t = {.cols = 4};
    static const char *const heading[] = {"hybrid", "layer.head", "score", "kept by"};
    for (int i = 0; i < 4; i++) hh_cells_add(&t, "%s", heading[i]);
    for (int m = HH_DEMO_CAUSAL; m <= HH_DEMO_RANDOM; m++) {
        const hh_plan *p = &d->plan[m];
        for (int64_t i = 0; i < p->n_layers * p->n_heads; i++) {
            if (!hh_plan_keeps(p, i / p->n_heads, i % p->n_heads)) continue;
            hh_cells_add(&t, "%s", names[m]);
            hh_cells_add(&t, "%" PRId64 ".%" PRId64, i / p->n_heads, i % p->n_heads);
            hh_cells_add(&t, "%.3f", d->scores->score[i]);
            hh_cells_add(&t, "%s", hh_keep_rule_name((hh_keep_rule)p->rule[i]));
        }
    }
    hh_cells_print(&t, true, page);
    hh_cells_release(&t);
}

static void fill_page(const hh_demo *d, hh_buf *page) {
    hh_buf text = {0};
    bool *kept = hh_alloc((size_t)(d->scores->n_layers * d->scores->n_heads));
    for (int64_t i = 0; i < d->scores->n_layers * d->scores->n_heads; i++)
        kept[i] = hh_plan_keeps(&d->plan[HH_DEMO_CAUSAL], i / d->scores->n_heads, i % d->scores->n_heads);
    hh_page_begin(page, "hydrahead demo", "nano: probe, select, convert, align, distil, and what is left to find");
    hh_demo_sentences(d, &text);
    hh_page_paragraph(page, text.data);
    hh_demo_table(d, true, page);
    hh_page_heading(page, "Needles by depth and length");
    needle_maps(d, page);
    hh_page_heading(page, "Training");
    curves(d, page);
    hh_page_heading(page, "Plans");
    plan_table(d, page);
    hh_page_heading(page, "Heads");
    hh_scores_page(d->scores, kept, page);
    hh_page_end(page);
    hh_buf_release(&text);
    hh_free(kept);
}

hh_code hh_demo_write(const hh_demo *d, hh_error *err) {
    char *json = hh_path_join(d->o.out_dir, "summary.json"), *html = hh_path_join(d->o.out_dir, "report.html");
    hh_buf page = {0};
    hh_code code = hh_json_write(json, summary(d), 12, err);
    fill_page(d, &page);
    if (code == HH_OK) code = hh_file_write(html, page.data, page.len, err);
    hh_buf_release(&page);
    hh_free(json);
    hh_free(html);
    return code;
}
