/* Tokens of a step; see trainset.h. */
#include "train/trainset.h"

#include "base/parallel.h"
#include "base/rng.h"
#include "data/corpus.h"

#include <inttypes.h>
#include <string.h>

int64_t hh_trainset_longest(const hh_trainset_options *o) {
    int64_t longest = 0;
    for (int64_t i = 0; i < o->n_lengths; i++)
        if (o->length[i] > longest) longest = o->length[i];
    return longest;
}

int64_t hh_trainset_max_spans(const hh_trainset_options *o) {
    int64_t shortest = o->micro_tokens;
    for (int64_t i = 0; i < o->n_lengths; i++)
        if (o->length[i] < shortest) shortest = o->length[i];
    int64_t n = o->micro_tokens / shortest;
    return n < o->sequences ? n : o->sequences;
}

double hh_trainset_mean_tokens(const hh_trainset_options *o) {
    double sum = 0;
    for (int64_t i = 0; i < o->n_lengths; i++) sum += (double)o->length[i];
    return sum / (double)o->n_lengths * (double)o->sequences;
}

static hh_code check_options(const hh_trainset_options *o, hh_error *err) {
    if (o->sequences < 1) return hh_fail(err, HH_EINVAL, "a step needs at least one sequence");
    if (o->n_lengths < 1) return hh_fail(err, HH_EINVAL, "no sequence length is given");
    for (int64_t i = 0; i < o->n_lengths; i++)
        if (o->length[i] < 2)
            return hh_fail(err, HH_EINVAL, "a sequence of %" PRId64 " tokens has nothing to predict", o->length[i]);
    if (o->micro_tokens < hh_trainset_longest(o))
        return hh_fail(err, HH_EINVAL, "a micro-batch of %" PRId64 " tokens cannot hold a sequence of %" PRId64,
                       o->micro_tokens, hh_trainset_longest(o));
    if (!(o->background_weight >= 0 && o->background_weight <= 1))
        return hh_fail(err, HH_EINVAL, "the weight of tokens that answer nothing is %g; it must be in [0, 1]",
                       o->background_weight);
    return HH_OK;
}

hh_code hh_sequence_from_mixture(void *context, int64_t step, int64_t row, int64_t n_rows, int64_t length, int32_t *ids,
                                 uint8_t *flags, hh_error *err) {
    return hh_mixture_row(context, step, row, n_rows, length, ids, flags, err);
}

hh_code hh_trainset_init(hh_trainset *s, const hh_trainset_options *o, hh_error *err) {
    *s = (hh_trainset){.o = *o, .step = -1};
    HH_TRY(check_options(o, err));
    size_t rows = (size_t)o->sequences, max;
    if (hh_mul_overflows(rows, (size_t)hh_trainset_longest(o), &max))
        return hh_fail(err, HH_ENOMEM, "%zu sequences of %" PRId64 " tokens are more than can be addressed", rows,
                       hh_trainset_longest(o));
    hh_code code;
    const char *what = "the tokens of a step";
    HH_TRY_GOTO(code, hh_alloc_checked((void **)&s->lo, rows + 1, sizeof *s->lo, what, err), fail);
    HH_TRY_GOTO(code, hh_alloc_checked((void **)&s->failed, rows, sizeof *s->failed, what, err), fail);
    HH_TRY_GOTO(code, hh_alloc_checked((void **)&s->ids, max, sizeof *s->ids, what, err), fail);
    HH_TRY_GOTO(code, hh_alloc_checked((void **)&s->target, max, sizeof *s->target, what, err), fail);
    HH_TRY_GOTO(code, hh_alloc_checked((void **)&s->weight, max, sizeof *s->weight, what, err), fail);
    HH_TRY_GOTO(code, hh_alloc_checked((void **)&s->flags, max, 1, what, err), fail);
    s->length = hh_alloc((size_t)o->n_lengths * sizeof *s->length);
    memcpy(s->length, o->length, (size_t)o->n_lengths * sizeof *s->length);
    s->o.length = s->length;
    return HH_OK;
fail:
    hh_trainset_release(s);
    return code;
}

void hh_trainset_release(hh_trainset *s) {
    hh_free(s->length);
    hh_free(s->lo);
    hh_free(s->failed);
    hh_free(s->ids);
    hh_free(s->target);
    hh_free(s->weight);
    hh_free(s->flags);
    *s = (hh_trainset){.step = -1};
}

/* The row at token t predicts t + 1: it has an answer's weight when t + 1 is of an answer. Sequences without answers
 * count in full. */
static void set_targets(hh_trainset *s, int64_t lo, int64_t hi) {
    bool answers = false;
    for (int64_t t = lo; t < hi; t++) answers |= (s->flags[t] & HH_TOKEN_ANSWER) != 0;
    for (int64_t t = lo; t < hi; t++) {
        bool last = t + 1 == hi;
        bool background = answers && (last || !(s->flags[t + 1] & HH_TOKEN_ANSWER));
        s->weight[t] = last ? 0 : background ? (float)s->o.background_weight : 1;
        s->target[t] = s->weight[t] != 0 ? s->ids[t + 1] : -1;
        s->target_weight += (double)s->weight[t];
        s->n_targets += s->weight[t] != 0;
    }
}

static hh_code check_ids(const hh_trainset *s, int64_t row, int64_t lo, int64_t hi, hh_error *err) {
    for (int64_t t = lo; t < hi; t++)
        if (s->ids[t] < 0 || s->ids[t] >= s->o.vocab)
            return hh_fail(err, HH_EINVAL,
                           "sequence %" PRId64 " of step %" PRId64
                           " has token %d, but the model's vocabulary ends at %" PRId64
                           "; the tokenizer is not this model's",
                           row, s->step, (int)s->ids[t], s->o.vocab);
    return HH_OK;
}

static void draw_lengths(hh_trainset *s) {
    const hh_trainset_options *o = &s->o;
    hh_rng rng = hh_rng_stream(o->seed ^ UINT64_C(0x6c656e67746873),
                               (uint64_t)s->step); /* apart from the sources' own streams */
    s->lo[0] = 0;
    for (int64_t row = 0; row < o->sequences; row++)
        s->lo[row + 1] = s->lo[row] + o->length[hh_rng_below(&rng, o->n_lengths)];
    s->n_tokens = s->lo[o->sequences];
}

/* First sequence of a rank's share, by tokens; for rank == size, the number of sequences. */
static int64_t cut_sequences(const hh_trainset *s, int64_t rank, int64_t size) {
    int64_t row = 0, token = s->n_tokens / size * rank + s->n_tokens % size * rank / size;
    while (row < s->o.sequences && s->lo[row] + s->lo[row + 1] <= 2 * token) row++; /* its middle is before the cut */
    return rank == size ? s->o.sequences : row;
}

static hh_code fill_row(hh_trainset *s, int64_t row, hh_error *err) {
    const hh_trainset_options *o = &s->o;
    int64_t lo = s->lo[row], hi = s->lo[row + 1];
    hh_code code = o->fill(o->context, s->step, row, o->sequences, hi - lo, s->ids + lo, s->flags + lo, err);
    if (code != HH_OK) return hh_fail_in(err, "sequence %" PRId64 " of step %" PRId64, row, s->step);
    return check_ids(s, row, lo, hi, err);
}

static void try_row(void *context, int64_t i, int thread) {
    hh_trainset *s = context;
    hh_error err = {0};
    (void)thread;
    s->failed[s->first + i] = fill_row(s, s->first + i, &err) != HH_OK;
}

/* Rows depend on their numbers alone; the first that fails does so again, to say why. */
static hh_code fill_share(hh_trainset *s, hh_error *err) {
    s->n_targets = 0;
    s->target_weight = 0;
    hh_parallel_for(s->o.n_threads, s->end - s->first, try_row, s);
    for (int64_t row = s->first; row < s->end; row++) {
        if (s->failed[row]) HH_TRY(fill_row(s, row, err));
        set_targets(s, s->lo[row], s->lo[row + 1]);
    }
    return HH_OK;
}

hh_code hh_trainset_make(hh_trainset *s, int64_t step, hh_comm *c, hh_error *err) {
    s->step = step;
    draw_lengths(s);
    s->first = cut_sequences(s, c->rank, c->size);
    s->end = cut_sequences(s, c->rank + 1, c->size);
    HH_TRY(hh_comm_agree(c, fill_share(s, err), err));
    double sum[] = {(double)s->n_targets, s->target_weight};
    HH_TRY(hh_comm_sum(c, sum, 2, err));
    s->n_targets = (int64_t)sum[0];
    s->target_weight = sum[1];
    if (s->target_weight == 0) return hh_fail(err, HH_EINVAL, "step %" PRId64 " has no token whose loss counts", step);
    return HH_OK;
}

int64_t hh_trainset_micro(const hh_trainset *s, int64_t first, hh_span *spans) {
    int64_t next = first;
    while (next < s->end && s->lo[next + 1] - s->lo[first] <= s->o.micro_tokens) {
        spans[next - first] = (hh_span){s->lo[next] - s->lo[first], s->lo[next + 1] - s->lo[first], 0};
        next++;
    }
    HH_ASSERT(next > first);
    return next;
}
