/* What an evaluation of needle tasks found, as JSON, as a table, as a page; see ruler.h. */
#include "eval/ruler.h"

#include "report/report.h"

#include <math.h>
#include <string.h>

enum { DEPTH_BINS = 10 };

static const char comparable[] =
    "Haystacks of essays are book text here, so that these figures are not comparable with RULER's published ones; "
    "noise and needle haystacks are RULER's own, byte for byte.";

static json_t *number_of(const hh_ruler_cell *c, const char *what) {
    if (strcmp(what, "stderr") == 0) return json_real(c->error);
    if (strcmp(what, "truncated") == 0) return json_integer(c->n_truncated);
    return json_real(c->accuracy);
}

static json_t *depths_of(const hh_ruler_cell *c) {
    json_t *a = json_array();
    for (int64_t i = 0; i < c->n; i++)
        json_array_append_new(a, json_pack("[f,f]", c->sample[i].depth, c->sample[i].score));
    return a;
}

/* {name: {task: {length: value}}} of all cells that have samples. */
static json_t *nest(const hh_ruler_result *r, const char *what) {
    const hh_ruler_options *o = &r->options;
    json_t *models = json_object();
    for (int64_t s = 0; s < r->n_subjects; s++) {
        json_t *tasks = json_object();
        for (int64_t t = 0; t < o->n_tasks; t++) {
            json_t *lengths = json_object();
            for (int64_t l = 0; l < o->n_lengths; l++) {
                const hh_ruler_cell *c = hh_ruler_cell_at(r, s, t, l);
                char length[32];
                snprintf(length, sizeof length, "%lld", (long long)o->length[l]);
                if (c->n > 0)
                    json_object_set_new(lengths, length,
                                        strcmp(what, "depths") == 0 ? depths_of(c) : number_of(c, what));
            }
            json_object_set_new(tasks, hh_needle_task_name(o->task[t]), lengths);
        }
        json_object_set_new(models, r->subject[s].name, tasks);
    }
    return models;
}

static json_t *list_skipped(const hh_ruler_result *r) {
    const hh_ruler_options *o = &r->options;
    json_t *list = json_array();
    for (int64_t s = 0; s < r->n_subjects; s++)
        for (int64_t t = 0; t < o->n_tasks; t++)
            for (int64_t l = 0; l < o->n_lengths; l++) {
                const hh_ruler_cell *c = hh_ruler_cell_at(r, s, t, l);
                if (c->why)
                    json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:s}", "model", r->subject[s].name, "task",
                                                          hh_needle_task_name(o->task[t]), "length",
                                                          (json_int_t)o->length[l], "why", c->why));
            }
    return list;
}

static const char *haystack_name(const hh_ruler_result *r) {
    return r->options.haystack_name ? r->options.haystack_name : "the shipped excerpt";
}

static const char *haystack_begins(const hh_ruler_result *r) {
    return r->options.anywhere ? ", begun at a place drawn for each sample" : "";
}

json_t *hh_ruler_json(const hh_ruler_result *r) {
    static const char *const parts[] = {"models", "stderr", "truncated", "depths"};
    json_t *out = json_object();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) json_object_set_new(out, parts[i], nest(r, parts[i]));
    json_object_set_new(out, "skipped", list_skipped(r));
    json_object_set_new(out, "samples", json_integer(r->options.n_samples));
    json_object_set_new(out, "seed", json_integer(r->options.seed));
    json_object_set_new(out, "haystack", json_string(haystack_name(r)));
    json_object_set_new(out, "haystack_anywhere", json_boolean(r->options.anywhere));
    json_object_set_new(out, "note", json_string(comparable));
    return out;
}

static void fill_table(const hh_ruler_result *r, hh_cells *t) {
    const hh_ruler_options *o = &r->options;
    t->cols = 2 + r->n_subjects;
    hh_cells_add(t, "task");
    hh_cells_add(t, "tokens");
    for (int64_t s = 0; s < r->n_subjects; s++) hh_cells_add(t, "%s", r->subject[s].name);
    for (int64_t k = 0; k < o->n_tasks; k++)
        for (int64_t l = 0; l < o->n_lengths; l++) {
            hh_cells_add(t, "%s", hh_needle_task_name(o->task[k]));
            hh_cells_add(t, "%lld", (long long)o->length[l]);
            for (int64_t s = 0; s < r->n_subjects; s++) {
                const hh_ruler_cell *c = hh_ruler_cell_at(r, s, k, l);
                if (c->n == 0)
                    hh_cells_add(t, "does not fit");
                else if (c->n_truncated)
                    hh_cells_add(t, "%.3f +- %.3f (%lld cut)", c->accuracy, c->error, (long long)c->n_truncated);
                else
                    hh_cells_add(t, "%.3f +- %.3f", c->accuracy, c->error);
            }
        }
}

static const char cut_means[] = "(n cut): answers that reached the limit of new tokens with values missing.";

static bool any_cut(const hh_ruler_result *r) {
    for (int64_t i = 0; i < r->n_subjects * r->options.n_tasks * r->options.n_lengths; i++)
        if (r->cell[i].n_truncated > 0) return true;
    return false;
}

void hh_ruler_table(const hh_ruler_result *r, hh_buf *out) {
    hh_cells t = {0};
    fill_table(r, &t);
    hh_cells_print(&t, false, out);
    hh_cells_release(&t);
    hh_buf_printf(out, "%lld samples each, seed %u, haystack: %s%s.\n", (long long)r->options.n_samples,
                  r->options.seed, haystack_name(r), haystack_begins(r));
    if (any_cut(r)) hh_buf_printf(out, "%s\n", cut_means);
}

/* Mean score by depth (rows) and length (columns) of one model and task. */
static void add_heatmap(const hh_ruler_result *r, int64_t s, int64_t t, hh_buf *out) {
    const hh_ruler_options *o = &r->options;
    int64_t cols = o->n_lengths, cells = DEPTH_BINS * cols;
    double *value = hh_alloc((size_t)cells * sizeof *value);
    int64_t *count = hh_alloc((size_t)cells * sizeof *count);
    char **label = hh_alloc((size_t)(cells + cols + DEPTH_BINS) * sizeof *label), **note = label + cols + DEPTH_BINS;
    for (int64_t l = 0; l < cols; l++) {
        const hh_ruler_cell *c = hh_ruler_cell_at(r, s, t, l);
        label[l] = hh_sprintf("%lld", (long long)o->length[l]);
        for (int64_t i = 0; i < c->n; i++) {
            int64_t bin = (int64_t)(c->sample[i].depth * DEPTH_BINS);
            if (bin >= DEPTH_BINS) bin = DEPTH_BINS - 1;
            value[bin * cols + l] += c->sample[i].score;
            count[bin * cols + l]++;
        }
    }
    for (int64_t i = 0; i < DEPTH_BINS; i++) label[cols + i] = hh_sprintf("%d-%d %%", (int)i * 10, (int)i * 10 + 10);
    for (int64_t i = 0; i < cells; i++) {
        value[i] = count[i] ? value[i] / (double)count[i] : NAN;
        note[i] = hh_sprintf("%lld samples", (long long)count[i]);
    }
    char *title = hh_sprintf("%s: %s", r->subject[s].name, hh_needle_task_name(o->task[t]));
    hh_page_heatmap(out, &(hh_heatmap){.title = title,
                                       .row_axis = "depth of the needle",
                                       .col_axis = "length in tokens",
                                       .rows = DEPTH_BINS,
                                       .cols = cols,
                                       .value = value,
                                       .row_label = (const char *const *)label + cols,
                                       .col_label = (const char *const *)label,
                                       .note = (const char *const *)note,
                                       .lo = 0,
                                       .hi = 1});
    for (int64_t i = 0; i < cells + cols + DEPTH_BINS; i++) hh_free(label[i]);
    hh_free(title);
    hh_free(label);
    hh_free(count);
    hh_free(value);
}

void hh_ruler_page(const hh_ruler_result *r, const char *title, hh_buf *out) {
    char *subtitle = hh_sprintf("RULER's needle tasks: %lld samples each, seed %u, haystack: %s%s",
                                (long long)r->options.n_samples, r->options.seed, haystack_name(r), haystack_begins(r));
    hh_cells t = {0};
    hh_page_begin(out, title, subtitle);
    hh_page_paragraph(out, comparable);
    fill_table(r, &t);
    hh_cells_print(&t, true, out);
    if (any_cut(r)) hh_page_paragraph(out, cut_means);
    hh_page_heading(out, "Score by depth and length");
    hh_page_paragraph(
        out, "Mean score of the samples whose needle stands in that tenth of the text; an empty cell had none.");
    for (int64_t s = 0; s < r->n_subjects; s++)
        for (int64_t k = 0; k < r->options.n_tasks; k++) add_heatmap(r, s, k, out);
    hh_page_end(out);
    hh_cells_release(&t);
    hh_free(subtitle);
}
