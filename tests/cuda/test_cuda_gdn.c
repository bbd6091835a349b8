/* Gated DeltaNet's forward on the GPU: both modes against the recurrent form in double precision, widths, packed spans,
 * odd lengths, extreme gates, cuts and repeated runs bit for bit. */
#include "cuda/twin.h"

#include "ops/gdn.h"

enum { MAX_SPANS = 6 };

extern int hh_gdn_chunked_path; /* ops/cuda/gdn_fwd.cuh: 1 takes the kernel of many heads for few */

typedef struct problem {
    int64_t T, H, D, n_spans;
    const hh_span *span;
    both q, k, v, g, beta, o, saved, start[MAX_SPANS], state[MAX_SPANS];
} problem;

/* How keys come. */
typedef enum keys { OWN_KEYS, SAME_KEY, NO_KEYS } keys;

static void make_unit(both x, double scale) {
    for (int64_t t = 0; t < x.cpu.dim[0]; t++)
        for (int64_t h = 0; h < x.cpu.dim[1]; h++) {
            hh_real *row = hh_row(x.cpu, t) + h * x.cpu.dim[2];
            double sum = 1e-6;
            for (int64_t d = 0; d < x.cpu.dim[2]; d++) sum += row[d] * row[d];
            for (int64_t d = 0; d < x.cpu.dim[2]; d++) row[d] = (hh_real)(row[d] * scale / sqrt(sum));
        }
    twin_upload(x);
}

static void set_keys(both k, keys kind) {
    for (int64_t t = 0; t < k.cpu.dim[0]; t++)
        for (int64_t i = 0; i < hh_tensor_row_count(k.cpu); i++)
            hh_row(k.cpu, t)[i] = kind == NO_KEYS ? 0 : hh_row(k.cpu, 0)[i];
    twin_upload(k);
}

static both copy_of(both x) {
    both y = twin_tensor(x.gpu.dtype, 3, x.cpu.dim[0], x.cpu.dim[1], x.cpu.dim[2], 0, 0, 0);
    for (int64_t i = 0; i < x.cpu.dim[0]; i++)
        memcpy(hh_row(y.cpu, i), hh_row(x.cpu, i), (size_t)hh_tensor_row_count(x.cpu) * sizeof(hh_real));
    twin_upload(y);
    return y;
}

/* Decays around e^-decay a token, beta around `strength`, and states to start from. Rows of activations are padded by
 * `pad`: 8 keeps 16-byte loads possible, 3 does not. */
static problem make(int64_t H, int64_t D, const hh_span *span, int64_t n_spans, int64_t pad, double decay,
                    double strength, keys kind) {
    int64_t T = span[n_spans - 1].hi;
    problem p = {.T = T, .H = H, .D = D, .n_spans = n_spans, .span = span};
    p.q = twin_act(3, T, H, D, pad), p.k = twin_act(3, T, H, D, pad), p.v = twin_act(3, T, H, D, pad);
    p.o = twin_act(3, T, H, D, pad);
    p.g = twin_tensor(HH_DTYPE_F32, 2, T, H, 0, 1, 1, 0), p.beta = twin_tensor(HH_DTYPE_F32, 2, T, H, 0, 2, 1, 0);
    p.saved = twin_act(3, hh_gdn_chunk_count(span, n_spans), H, D * D, 0);
    make_unit(p.q, 1 / sqrt((double)D)), make_unit(p.k, 1);
    if (kind != OWN_KEYS) set_keys(p.k, kind);
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) {
            hh_row(p.g.cpu, t)[h] = (hh_real)(-decay * (1 + 0.5 * tanh((double)hh_row(p.g.cpu, t)[h])));
            hh_row(p.beta.cpu, t)[h] = (hh_real)(strength * (1 + 0.1 * tanh((double)hh_row(p.beta.cpu, t)[h])) / 1.1);
        }
    twin_upload(p.g), twin_upload(p.beta);
    for (int64_t s = 0; s < n_spans; s++) {
        p.start[s] = twin_tensor(HH_DTYPE_F32, 3, H, D, D, 0, 0.3, 0);
        p.state[s] = copy_of(p.start[s]);
    }
    return p;
}

static void run(problem *p, hh_gdn_mode mode) {
    hh_tensor state[MAX_SPANS];
    for (int64_t s = 0; s < p->n_spans; s++) state[s] = p->state[s].gpu;
    tw.gpu->ops->gdn_fwd(tw.gpu, p->o.gpu, p->saved.gpu, p->q.gpu, p->k.gpu, p->v.gpu, p->g.gpu, p->beta.gpu, state,
                         p->span, p->n_spans, mode);
}

/* One head of one span by F1-F3 in double; what is expected goes to the CPU's side. */
static void oracle_head(problem *p, int64_t s, int64_t h, int64_t chunk) {
    const int64_t D = p->D;
    double *S = calloc((size_t)(D * D), sizeof *S), *u = calloc((size_t)D, sizeof *u),
           *out = calloc((size_t)D, sizeof *u);
    hh_real *state = hh_row(p->state[s].cpu, h);
    for (int64_t i = 0; i < D * D; i++) S[i] = hh_row(p->start[s].cpu, h)[i];
    for (int64_t t = p->span[s].lo; t < p->span[s].hi; t++) {
        const hh_real *q = hh_row(p->q.cpu, t) + h * D, *k = hh_row(p->k.cpu, t) + h * D;
        const double keep = exp((double)hh_row(p->g.cpu, t)[h]), beta = hh_row(p->beta.cpu, t)[h];
        if ((t - p->span[s].lo) % HH_GDN_CHUNK == 0) {
            hh_real *saved = hh_row(p->saved.cpu, chunk++) + h * D * D;
            for (int64_t i = 0; i < D * D; i++) saved[i] = (hh_real)S[i];
        }
        for (int64_t b = 0; b < D; b++) u[b] = (hh_row(p->v.cpu, t) + h * D)[b], out[b] = 0;
        for (int64_t a = 0; a < D; a++)
            for (int64_t b = 0; b < D; b++) S[a * D + b] *= keep, u[b] -= S[a * D + b] * k[a];
        for (int64_t a = 0; a < D; a++)
            for (int64_t b = 0; b < D; b++) S[a * D + b] += beta * k[a] * u[b], out[b] += S[a * D + b] * q[a];
        for (int64_t b = 0; b < D; b++) (hh_row(p->o.cpu, t) + h * D)[b] = (hh_real)out[b];
    }
    for (int64_t i = 0; i < D * D; i++) state[i] = (hh_real)S[i];
    free(S), free(u), free(out);
}

static void oracle(problem *p) {
    int64_t chunk = 0;
    for (int64_t s = 0; s < p->n_spans; chunk += hh_gdn_span_chunks(p->span[s]), s++)
        for (int64_t h = 0; h < p->H; h++) oracle_head(p, s, h, chunk);
}

#define assert_within(b, tolerance, what)                                                                              \
    do {                                                                                                               \
        double within_e = twin_error(b);                                                                               \
        if (!(within_e <= (tolerance))) fail_msg("%s: %s is %.3g away, %.3g allowed", what, #b, within_e, tolerance);  \
    } while (0)

/* The chunked form has kernels of its own. */
static bool has_chunks(int64_t D) {
    return tw.gpu->activation == HH_DTYPE_BF16 && (D == 64 || D == 128);
}

/* Quick: token by token where there is nothing else, or where it is not long. */
static bool is_taken(const problem *p, int mode) {
    if (!quick()) return true;
    return has_chunks(p->D) ? mode == HH_GDN_CHUNKED || p->T <= 130 : mode == HH_GDN_RECURRENT;
}

/* Both modes; `looser` times the usual tolerance. States are float32, also where the chunked form reads them in bf16. */
static void check(problem *p, double looser, const char *name) {
    char what[160];
    oracle(p);
    for (int mode = 0; mode < 2; mode++) {
        if (!is_taken(p, mode)) continue;
        for (int64_t s = 0; s < p->n_spans; s++) {
            both fresh = copy_of(p->start[s]);
            p->state[s].gpu = fresh.gpu;
        }
        run(p, (hh_gdn_mode)mode);
        snprintf(what, sizeof what, "%s, D %lld, %s", name, (long long)p->D, mode ? "recurrent" : "chunked");
        const double tolerance = looser * twin_tolerance();
        assert_within(p->o, tolerance, what);
        assert_within(p->saved, tolerance, what);
        for (int64_t s = 0; s < p->n_spans; s++) assert_within(p->state[s], tolerance, what);
    }
    twin_reset();
}

static const hh_span long_spans[6] = {{0, 0, 0}, {0, 1, 0}, {1, 70, 0}, {70, 133, 0}, {133, 133, 0}, {133, 326, 64}};
static const hh_span short_spans[6] = {{0, 0, 0}, {0, 1, 0}, {1, 20, 0}, {20, 33, 0}, {33, 33, 0}, {33, 100, 64}};

/* Quick: short ones for what goes token by token. */
static const hh_span *packed_for(int64_t D) {
    return quick() && !has_chunks(D) ? short_spans : long_spans;
}

static void widths_and_packed_spans(void) {
    const int64_t D[] = {5, 32, 64, 96, 128, 160, 256};
    for (size_t i = 0; i < sizeof D / sizeof *D; i += quick() ? 2 : 1)
        for (int64_t pad = quick() && i ? 8 : 3; pad <= 8; pad += 5) {
            problem p = make(2, D[i], packed_for(D[i]), 6, pad, 0.05, 0.9, OWN_KEYS);
            check(&p, 1, "packed spans");
        }
}

static void lengths(void) {
    const int64_t T[] = {1, 2, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 66, 127, 128, 129, 191};
    for (size_t i = 0; i < sizeof T / sizeof *T; i += quick() ? 4 : 1)
        for (int64_t D = 64; D <= 128; D += 64) {
            const hh_span span = {0, T[i], 0};
            problem p = make(3, D, &span, 1, 0, 0.05, 0.9, OWN_KEYS);
            check(&p, 1, "some length");
        }
}

/* So many heads that a head's columns share a block, and so many tokens that errors would have grown. */
static void many_heads_and_a_long_sequence(void) {
    for (int64_t D = 64; D <= 128; D += 64) {
        const int64_t most = has_chunks(D) ? 330 : 70;
        const hh_span span = {0, at_most(150, most), 0}, far = {0, at_most(1000, most), 0};
        hh_gdn_chunked_path = quick();
        problem p = make(at_most(160, 2), D, &span, 1, 8, 0.05, 0.9, OWN_KEYS);
        check(&p, 1, "many heads");
        hh_gdn_chunked_path = 0;
        problem l = make(2, D, &far, 1, 8, 0.01, 0.9, OWN_KEYS);
        check(&l, 1, "a long sequence");
    }
}

/* Looser where nothing is ever forgotten: with one key, beta 2 and no decay every rounding of a chunk's bf16 operands
 * stays in the state. */
static void extreme_gates_and_keys(void) {
    const double decays[] = {0, 1e-5, 2, 20}, strengths[] = {1e-4, 1, 2};
    const hh_span span = {0, at_most(200, 70), 0};
    for (int64_t D = 64; D <= 128; D += 64)
        for (int i = 0; i < 4; i += quick() ? 3 : 1)
            for (int j = quick() ? 2 : 0; j < 3; j++)
                for (int kind = OWN_KEYS; kind <= (quick() && i ? OWN_KEYS : NO_KEYS); kind++) {
                    char what[96];
                    snprintf(what, sizeof what, "decay %g, beta %g, %s", decays[i], strengths[j],
                             kind == OWN_KEYS   ? "own keys"
                             : kind == SAME_KEY ? "one key"
                                                : "no keys");
                    problem p = make(1, D, &span, 1, 0, decays[i], strengths[j], (keys)kind);
                    check(&p, kind == SAME_KEY && i < 2 ? 8 : 2, what);
                }
}

static void no_states_means_zeros(void) {
    for (int64_t D = 64; D <= 128; D += 64) {
        const hh_span *packed = packed_for(D);
        problem p = make(2, D, packed, 6, 0, 0.05, 0.9, OWN_KEYS);
        for (int64_t s = 0; s < p.n_spans; s++) memset(p.start[s].cpu.data, 0, (size_t)(p.H * D * D) * sizeof(hh_real));
        oracle(&p);
        for (int mode = 0; mode < 2; mode++) {
            if (!is_taken(&p, mode)) continue;
            tw.gpu->ops->gdn_fwd(tw.gpu, p.o.gpu, HH_NONE, p.q.gpu, p.k.gpu, p.v.gpu, p.g.gpu, p.beta.gpu, NULL, packed,
                                 6, (hh_gdn_mode)mode);
            assert_twins(p.o);
        }
        twin_reset();
    }
}

/* The bytes of a tensor on the GPU. */
static char *bytes_of(hh_tensor t) {
    size_t bytes = hh_dtype_bytes(t.dtype, t.dim[0] * t.stride);
    char *b = hh_arena_alloc(&tw.host, bytes);
    tw.gpu->to_host(tw.gpu, b, t.data, bytes);
    return b;
}
#define assert_same_bits(a, b)                                                                                         \
    assert_memory_equal(bytes_of(a), bytes_of(b), hh_dtype_bytes((a).dtype, (a).dim[0] * (a).stride))

static void run_pieces(problem *p, hh_tensor o, hh_tensor state, const hh_span *piece, int n) {
    for (int i = 0; i < n; i++)
        tw.gpu->ops->gdn_fwd(tw.gpu, o, HH_NONE, p->q.gpu, p->k.gpu, p->v.gpu, p->g.gpu, p->beta.gpu, &state, &piece[i],
                             1, piece[i].hi - piece[i].lo == 1 ? HH_GDN_RECURRENT : HH_GDN_CHUNKED);
}

/* A prefix cut at a multiple of 64 gives the same bits, also when one token follows; and every run repeats. */
static void cuts_at_chunks_give_the_same_bits(void) {
    for (int64_t D = 64; D <= 128; D += 64)
        for (int64_t T = 129; T <= at_most(150, 129); T += 21) {
            const hh_span whole = {0, T, 0}, piece[2] = {{0, 128, 0}, {128, T, 128}};
            problem p = make(2, D, &whole, 1, 0, 0.05, 0.9, OWN_KEYS);
            both o[3], state[3];
            for (int i = 0; i < 3; i++) {
                o[i] = twin_act(3, T, 2, D, 0), state[i] = copy_of(p.start[0]);
                run_pieces(&p, o[i].gpu, state[i].gpu, i == 1 ? piece : &whole, i == 1 ? 2 : 1);
            }
            for (int i = 1; i < 3; i++) {
                assert_same_bits(o[i].gpu, o[0].gpu);
                assert_same_bits(state[i].gpu, state[0].gpu);
            }
            twin_reset();
        }
}

/* What a span computes does not depend on its neighbours, nor on how many heads share the card. */
static void neighbours_change_nothing(void) {
    for (int64_t D = 64; D <= 128; D += 64) {
        const hh_span *packed = packed_for(D);
        problem p = make(at_most(160, 4), D, packed, 6, 0, 0.05, 0.9, OWN_KEYS);
        hh_gdn_chunked_path = quick();
        run(&p, HH_GDN_CHUNKED);
        hh_gdn_chunked_path = 0;
        const hh_span last = packed[5];
        both state = copy_of(p.start[5]), o = twin_act(3, p.T, p.H, D, 0);
        hh_tensor one = state.gpu, few[5] = {p.q.gpu, p.k.gpu, p.v.gpu, o.gpu, one};
        for (int i = 0; i < 5; i++) few[i].dim[i < 4 ? 1 : 0] = 3;
        hh_tensor g = hh_tensor_columns(p.g.gpu, 0, 3), beta = hh_tensor_columns(p.beta.gpu, 0, 3);
        tw.gpu->ops->gdn_fwd(tw.gpu, few[3], HH_NONE, few[0], few[1], few[2], g, beta, &few[4], &last, 1,
                             HH_GDN_CHUNKED);
        hh_tensor there = p.state[5].gpu;
        there.dim[0] = 3;
        assert_same_bits(few[4], there);
        twin_reset();
    }
}

static void slow_decay_stays_finite(void) {
    const hh_span span = {0, at_most(20000, 300), 0};
    problem p = make(1, 64, &span, 1, 0, 1e-6, 1.99, OWN_KEYS);
    tw.gpu->ops->gdn_fwd(tw.gpu, p.o.gpu, HH_NONE, p.q.gpu, p.k.gpu, p.v.gpu, p.g.gpu, p.beta.gpu, NULL, &span, 1,
                         HH_GDN_CHUNKED);
    assert_true(isfinite(twin_error(p.o)));
    twin_reset();
}

/* A recorded step reads positions and states from its lists: it runs on with other spans. */
static void a_step_can_be_recorded(void) {
    const hh_span all[2] = {{0, 1, 0}, {1, 2, 0}};
    problem p = make(3, 64, all, 2, 0, 0.05, 0.9, OWN_KEYS);
    oracle(&p);
    for (int round = 0; round < 4; round++) {
        both state[2] = {copy_of(p.start[0]), copy_of(p.start[1])};
        hh_tensor S[2] = {state[0].gpu, state[1].gpu};
        const hh_span span[2] = {{0, 1, 100 + round}, {1, 2, 7 * round}};
        do {
            hh_backend_record_begin(tw.gpu, &p, 1);
            tw.gpu->ops->gdn_fwd(tw.gpu, p.o.gpu, HH_NONE, p.q.gpu, p.k.gpu, p.v.gpu, p.g.gpu, p.beta.gpu, S, span, 2,
                                 HH_GDN_RECURRENT);
        } while (hh_backend_record_end(tw.gpu));
        assert_twins(p.o);
        for (int s = 0; s < 2; s++) {
            state[s].cpu = p.state[s].cpu;
            assert_twins(state[s]);
        }
    }
    hh_backend_record_drop(tw.gpu, &p);
    twin_reset();
}

static void in_both_types(void (*body)(void)) {
    for (int f32 = 0; f32 < 2; f32++) {
        if (!twin_open(f32 ? HH_PRECISION_F32 : HH_PRECISION_AUTO)) skip();
        body();
        twin_close();
    }
}

#define TEST(name)                                                                                                     \
    static void test_##name(void **unused) {                                                                           \
        (void)unused;                                                                                                  \
        in_both_types(name);                                                                                           \
    }
TEST(widths_and_packed_spans)
TEST(lengths)
TEST(many_heads_and_a_long_sequence)
TEST(extreme_gates_and_keys)
TEST(no_states_means_zeros)
TEST(cuts_at_chunks_give_the_same_bits)
TEST(neighbours_change_nothing)
TEST(slow_decay_stays_finite)
TEST(a_step_can_be_recorded)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widths_and_packed_spans),        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_many_heads_and_a_long_sequence), cmocka_unit_test(test_extreme_gates_and_keys),
        cmocka_unit_test(test_no_states_means_zeros),          cmocka_unit_test(test_cuts_at_chunks_give_the_same_bits),
        cmocka_unit_test(test_neighbours_change_nothing),      cmocka_unit_test(test_slow_decay_stays_finite),
        cmocka_unit_test(test_a_step_can_be_recorded),
    };
    return cmocka_run_group_tests_name("cuda gated delta rule", tests, NULL, NULL);
}
