/* The score table for machines (heads.json) and for people (heat maps). */
#include "base/filemap.h"
#include "base/stats.h"
#include "format/json.h"
#include "probe/scores.h"
#include "report/report.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#define BEST 16 /* heads in the table */

static json_t *matrix(const double *x, int64_t rows, int64_t cols) {
    json_t *m = json_array();
    for (int64_t r = 0; r < rows; r++) {
        json_t *row = json_array();
        for (int64_t c = 0; c < cols; c++) json_array_append_new(row, json_real(x[r * cols + c]));
        json_array_append_new(m, row);
    }
    return m;
}

static json_t *capability_json(const hh_scores *s, const hh_capability_scores *c) {
    const int64_t L = s->n_layers, H = s->n_heads;
    json_t *candidates = json_array(), *dropped = json_array(), *o = json_object();
    for (int64_t i = 0; i < L * H; i++)
        if (c->candidate[i])
            json_array_append_new(candidates, json_pack("[I, I]", (json_int_t)(i / H), (json_int_t)(i % H)));
    for (int64_t i = 0; i < c->n_dropped; i++)
        json_array_append_new(dropped, json_pack("{s:I, s:f, s:f}", "pair", (json_int_t)c->dropped[i].index, "clean",
                                                 c->dropped[i].clean, "corrupt", c->dropped[i].corrupt));
    json_object_set_new(o, "name", json_string(c->name));
    json_object_set_new(o, "pairs_used", json_integer(c->used));
    json_object_set_new(o, "pairs_dropped", json_integer(c->n_dropped));
    json_object_set_new(o, "dropped", dropped);
    json_object_set_new(o, "sender_rounds", json_integer(c->rounds));
    json_object_set_new(o, "sender_candidates", candidates);
    json_object_set_new(o, "attribution_spearman", json_real(c->spearman));
    json_object_set_new(o, "attribution_top10_jaccard", json_real(c->jaccard));
    json_object_set_new(o, "receiver", matrix(c->receiver, L, H));
    json_object_set_new(o, "sender", matrix(c->sender, L, H));
    json_object_set_new(o, "attribution", matrix(c->attribution, L, H));
    json_object_set_new(o, "attribution_direct", matrix(c->direct, L, H));
    json_object_set_new(o, "kappa", matrix(c->kappa, L, H));
    return o;
}

hh_code hh_scores_write_json(const hh_scores *s, const char *path, const char *model, int64_t length, int64_t seed,
                             hh_error *err) {
    json_t *root = json_object(), *capabilities = json_array();
    json_object_set_new(root, "model", json_string(model));
    json_object_set_new(root, "length", json_integer(length));
    json_object_set_new(root, "seed", json_integer(seed));
    json_object_set_new(root, "layers", json_integer(s->n_layers));
    json_object_set_new(root, "heads", json_integer(s->n_heads));
    json_object_set_new(root, "kv_heads", json_integer(s->n_kv_heads));
    json_object_set_new(root, "head_dim", json_integer(s->head_dim));
    json_object_set_new(root, "seconds",
                        json_pack("{s:f, s:f, s:f, s:f}", "base_forwards", s->base_seconds, "receivers",
                                  s->receiver_seconds, "attribution", s->attribution_seconds, "senders",
                                  s->sender_seconds));
    for (int64_t i = 0; i < s->n_capabilities; i++)
        json_array_append_new(capabilities, capability_json(s, &s->capability[i]));
    json_object_set_new(root, "capabilities", capabilities);
    json_object_set_new(root, "score", matrix(s->score, s->n_layers, s->n_heads));
    return hh_json_write(path, root, 12, err);
}

/* Best heads first: layer, head, score, and the largest receiver, sender and attribution over the capabilities. */
static int64_t best_heads(const hh_scores *s, char **cell) {
    const int64_t n = s->n_layers * s->n_heads, rows = n < BEST ? n : BEST;
    int64_t *order = hh_alloc(sizeof(int64_t) * (size_t)n), k = 0;
    hh_order_falling(s->score, n, order);
    static const char *const heading[] = {"layer.head", "score", "receiver", "sender", "attribution"};
    for (int i = 0; i < 5; i++) cell[k++] = hh_strdup(heading[i]);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t h = order[r];
        double most[3] = {-INFINITY, -INFINITY, -INFINITY};
        for (int64_t i = 0; i < s->n_capabilities; i++) {
            const hh_capability_scores *c = &s->capability[i];
            most[0] = fmax(most[0], c->receiver[h]);
            most[1] = fmax(most[1], c->sender[h]);
            most[2] = fmax(most[2], c->attribution[h]);
        }
        cell[k++] = hh_sprintf("%lld.%lld", (long long)(h / s->n_heads), (long long)(h % s->n_heads));
        cell[k++] = hh_sprintf("%.3f", s->score[h]);
        for (int i = 0; i < 3; i++) cell[k++] = hh_sprintf("%.3f", fabs(most[i]) < 5e-4 ? 0 : most[i]); /* not -0.000 */
    }
    hh_free(order);
    return rows + 1;
}

static void free_cells(char **cell, int64_t n) {
    for (int64_t i = 0; i < n; i++) hh_free(cell[i]);
}

static hh_heatmap map_of(const hh_scores *s, const char *title, const double *value, const bool *marked) {
    return (hh_heatmap){.title = title,
                        .row_axis = "layer",
                        .col_axis = "head",
                        .rows = s->n_layers,
                        .cols = s->n_heads,
                        .value = value,
                        .marked = marked,
                        .mark_label = marked ? "full attention kept" : NULL};
}

static void capability_page(const hh_scores *s, const hh_capability_scores *c, hh_buf *out) {
    char *line = hh_sprintf("Pairs: %lld used, %lld dropped because the corruption changes the readout by too little. "
                            "First-order attribution "
                            "against exact receiver scores: Spearman %.2f, Jaccard of the ten best %.2f.",
                            (long long)c->used, (long long)c->n_dropped, c->spearman, c->jaccard);
    hh_page_heading(out, c->name);
    hh_page_paragraph(out, line);
    hh_free(line);
    const char *const title[] = {"receiver: direct effect on the answer", "sender: effect through the known heads",
                                 "attribution: first-order total effect"};
    const double *const value[] = {c->receiver, c->sender, c->attribution};
    for (int i = 0; i < 3; i++) {
        hh_heatmap map = map_of(s, title[i], value[i], i == 1 ? c->candidate : NULL);
        if (i == 1) map.mark_label = "scored as a sender";
        hh_page_heatmap(out, &map);
    }
}

void hh_scores_page(const hh_scores *s, const bool *marked, hh_buf *out) {
    hh_heatmap map = map_of(s, "score of every head", s->score, marked);
    hh_page_heatmap(out, &map);
    char *cell[5 * (BEST + 1)];
    int64_t rows = best_heads(s, cell);
    hh_page_table(out, (const char *const *)cell, rows, 5);
    free_cells(cell, rows * 5);
    for (int64_t i = 0; i < s->n_capabilities; i++) capability_page(s, &s->capability[i], out);
}

hh_code hh_scores_write_html(const hh_scores *s, const char *path, const char *model, hh_error *err) {
    hh_buf page = {0};
    hh_page_begin(&page, "Which heads retrieval depends on", model);
    hh_page_paragraph(
        &page,
        "Each cell is one attention head. Its score is the share of the answer's evidence that is lost when the head's "
        "output is replaced by what it would have been without the evidence, averaged over capabilities after "
        "each has been scaled to [0, 1].");
    hh_scores_page(s, NULL, &page);
    hh_page_end(&page);
    hh_code code = hh_file_write(path, page.data, page.len, err);
    hh_buf_release(&page);
    return code;
}

void hh_scores_terminal(const hh_scores *s, bool color, hh_buf *out) {
    hh_heatmap map = map_of(s, "score of every head", s->score, NULL);
    hh_terminal_heatmap(out, &map, color);
    char *cell[5 * (BEST + 1)];
    int64_t rows = best_heads(s, cell);
    if (rows > 9) {
        free_cells(cell + 9 * 5, (rows - 9) * 5);
        rows = 9;
    }
    hh_buf_puts(out, "\n");
    hh_terminal_table(out, (const char *const *)cell, rows, 5);
    free_cells(cell, rows * 5);
}
