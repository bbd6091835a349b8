/* The slow and certain way to the same scores: one patched forward of the whole model for each head, by taps alone.
 * Included by the float and the double test, which differ in their tolerance. */
#ifndef HH_TESTS_PROBE_BRUTE_FORCE_H
#define HH_TESTS_PROBE_BRUTE_FORCE_H

#include "probe/prober.h"
#include "probe/random_model.h"

#include <math.h>
#include <string.h>

typedef struct brute {
    const hh_model *m;
    hh_run *run;
    int64_t T, row0, A, L, H, D;
    hh_real *clean, *corrupt, *patched; /* [L][T][H*D] */
    enum { KEEP_CLEAN, KEEP_CORRUPT, RECEIVER, SENDER, READ_PATCHED } doing;
    int64_t layer, head;
    const bool *known;
} brute;

static hh_real *at(const brute *b, hh_real *of, int64_t l, int64_t t, int64_t h) {
    return of + ((l * b->T + t) * b->H + h) * b->D;
}

static void brute_tap(void *context, hh_point point, int64_t l, hh_tensor x) {
    brute *b = context;
    if (point != HH_POINT_HEAD_OUTPUT) return;
    const size_t n = sizeof(hh_real) * (size_t)b->D;
    for (int64_t t = 0; t < b->T; t++)
        for (int64_t h = 0; h < b->H; h++) {
            hh_real *here = hh_row(x, t) + h * b->D;
            bool chosen = l == b->layer && h == b->head, known = b->known && b->known[l * b->H + h] && l > b->layer;
            switch (b->doing) {
            case KEEP_CLEAN:
                memcpy(at(b, b->clean, l, t, h), here, n);
                break;
            case KEEP_CORRUPT:
                memcpy(at(b, b->corrupt, l, t, h), here, n);
                break;
            case RECEIVER:
                memcpy(here, at(b, chosen ? b->corrupt : b->clean, l, t, h), n);
                break;
            case SENDER:
                if (known)
                    memcpy(at(b, b->patched, l, t, h), here, n);
                else
                    memcpy(here, at(b, chosen ? b->corrupt : b->clean, l, t, h), n);
                break;
            case READ_PATCHED:
                memcpy(here, at(b, known ? b->patched : b->clean, l, t, h), n);
                break;
            }
        }
}

static double brute_readout(brute *b, const int32_t *ids, const int32_t *right, const int32_t *wrong) {
    const hh_span span = {0, b->T, 0};
    const hh_batch batch = {.n_tokens = b->T, .n_spans = 1, .ids = ids, .span = &span};
    hh_error err = {0};
    hh_tensor final;
    hh_run_set_tap(b->run, (hh_tap){brute_tap, b});
    assert_int_equal(hh_forward(b->run, &batch, &final, &err), HH_OK);
    const int64_t V = b->m->config.vocab;
    hh_real *z = hh_alloc(sizeof(hh_real) * (size_t)(V * b->A));
    hh_logits(b->run, hh_tensor_rows(final, b->row0, b->row0 + b->A), NULL, b->A,
              hh_tensor_2d(z, HH_DTYPE_REAL, b->A, V));
    double m = 0, total = 0;
    for (int64_t j = 0; j < b->A; j++) {
        const hh_real *row = z + j * V;
        double top = -1e30, sum = 0;
        for (int64_t v = 0; v < V; v++) top = (double)row[v] > top ? (double)row[v] : top;
        for (int64_t v = 0; v < V; v++) sum += exp((double)row[v] - top);
        double weight = pow(0.9, (double)j);
        total += weight;
        m += weight * ((double)row[right[j]] - (wrong ? (double)row[wrong[j]] : top + log(sum)));
    }
    hh_free(z);
    return m / total;
}

/* Compares all scores of one pair, whose corruption must change m by least_effect (rounding is magnified by its
 * inverse). Every `every`th head is compared as a receiver, `senders` of them as senders. */
static void compare_with_brute_force(const hh_model *m, const hh_probe_pair *pair, double least_effect, int64_t every,
                                     int64_t senders, double tolerance) {
    const hh_config *c = &m->config;
    const int64_t L = c->n_layers, H = c->n_heads, D = c->head_dim, T = pair->n_prompt + pair->n_answer - 1;
    brute b = {.m = m, .T = T, .row0 = pair->n_prompt - 1, .A = pair->n_answer, .L = L, .H = H, .D = D, .layer = -1};
    hh_error err = {0};
    assert_int_equal(hh_run_new(&b.run, m, T, 1, HH_RUN_INFERENCE, &err), HH_OK);
    const size_t bytes = sizeof(hh_real) * (size_t)(L * T * H * D);
    b.clean = hh_alloc(bytes);
    b.corrupt = hh_alloc(bytes);
    b.patched = hh_alloc(bytes);
    int32_t *x = hh_alloc(sizeof(int32_t) * (size_t)T), *y = hh_alloc(sizeof(int32_t) * (size_t)T);
    memcpy(x, pair->prompt, sizeof(int32_t) * (size_t)pair->n_prompt);
    memcpy(y, pair->corrupt, sizeof(int32_t) * (size_t)pair->n_prompt);
    memcpy(x + pair->n_prompt, pair->right, sizeof(int32_t) * (size_t)(pair->n_answer - 1));
    memcpy(y + pair->n_prompt, pair->right, sizeof(int32_t) * (size_t)(pair->n_answer - 1));
    b.doing = KEEP_CLEAN;
    double clean = brute_readout(&b, x, pair->right, pair->wrong);
    b.doing = KEEP_CORRUPT;
    double corrupt = brute_readout(&b, y, pair->right, pair->wrong);

    hh_prober *p;
    double m_clean, m_corrupt, *ie = hh_alloc(sizeof(double) * (size_t)(L * H));
    assert_int_equal(hh_prober_new(&p, m, T + 1, pair->n_answer, &err), HH_OK);
    assert_int_equal(hh_prober_load(p, pair, &m_clean, &m_corrupt, &err), HH_OK);
    assert_true(fabs(m_clean - clean) <= tolerance * (1 + fabs(clean)));
    assert_true(fabs(m_corrupt - corrupt) <= tolerance * (1 + fabs(corrupt)));
    if (fabs(clean - corrupt) < least_effect) fail_msg("the corruption changes m from %g to %g only", clean, corrupt);

    hh_prober_receivers(p, ie);
    bool *known = hh_alloc((size_t)(L * H));
    b.doing = RECEIVER;
    for (int64_t l = 0; l < L; l++)
        for (int64_t h = 0; h < H; h++) {
            known[l * H + h] = l == L - 1 ? h % 2 == 0 : h == 1; /* several layers, some of their heads */
            if ((l * H + h) % every) continue;
            b.layer = l;
            b.head = h;
            double want = (clean - brute_readout(&b, x, pair->right, pair->wrong)) / (clean - corrupt);
            assert_near(ie[l * H + h], want, tolerance * fmax(1, fabs(want)));
        }
    for (int64_t i = 0; i < senders && i < (L - 1) * H; i++) {
        int64_t stride = (L - 1) * H / senders > 0 ? (L - 1) * H / senders : 1, s = i * stride % ((L - 1) * H);
        b.layer = s / H;
        b.head = s % H;
        b.known = known;
        b.doing = SENDER;
        brute_readout(&b, x, pair->right, pair->wrong);
        b.doing = READ_PATCHED;
        double want = (clean - brute_readout(&b, x, pair->right, pair->wrong)) / (clean - corrupt);
        assert_near(hh_prober_sender(p, known, s / H, s % H), want, tolerance * fmax(1, fabs(want)));
        b.known = NULL;
    }
    /* nothing above the last layer listens */
    assert_true(hh_prober_sender(p, known, L - 1, 0) == 0);

    hh_prober_free(p);
    hh_run_free(b.run);
    hh_free(b.clean);
    hh_free(b.corrupt);
    hh_free(b.patched);
    hh_free(x);
    hh_free(y);
    hh_free(ie);
    hh_free(known);
}

/* The promise is about float32 (or double); bf16 products are another matter. */
static hh_backend *open_exact(void) {
    hh_error err = {0};
    hh_backend *be;
    assert_ok(hh_cpu_open(&be, 2, HH_PRECISION_F32, NULL, &err));
    return be;
}

/* A random model of two layers, both readouts, one and several answer tokens. */
static void compare_random_models(hh_backend *be, double tolerance) {
    static const hh_family families[] = {HH_QWEN3, HH_LLAMA};
    for (int i = 0; i < 2; i++) {
        hh_model *m = random_model(be, families[i], (uint64_t)(17 + i));
        int32_t prompt[20], corrupt[20];
        for (int j = 0; j < 20; j++) prompt[j] = corrupt[j] = (j * 7 + i) % 53;
        corrupt[5] = 51;
        corrupt[6] = 3;
        const int32_t right[] = {4, 9, 30}, wrong[] = {8, 11, 2};
        hh_probe_pair pair = {
            .prompt = prompt, .corrupt = corrupt, .right = right, .wrong = wrong, .n_prompt = 20, .n_answer = 3};
        compare_with_brute_force(m, &pair, 1e-2, 1, 4, tolerance);
        pair.wrong = NULL;
        compare_with_brute_force(m, &pair, 1e-2, 1, 4, tolerance);
        pair.n_answer = 1;
        compare_with_brute_force(m, &pair, 1e-2, 1, 4, tolerance);
        hh_model_close(m);
    }
}

/* nano: RULER's needle of seven digits in two sentences, by its tokens. */
static void compare_nano(hh_backend *be, int64_t senders, double tolerance) {
    hh_error err = {0};
    hh_model *m;
    if (hh_model_open(&m, be, "nano", HH_LOAD_STORED, &err) != HH_OK) fail_msg("%s", err.text);
    static const int32_t prompt[] = {
        33,   728,  798,  326,  1965, 305,  296,  471,  650,  370, 267,  1381, 278,  1448, 261,  949,  1122, 1040,
        1155, 14,   360,  543,  1259, 283,  358,  77,   286,  740, 69,   324,  14,   297,  534,  527,  740,  336,
        565,  261,  296,  471,  650,  652,  929,  14,   199,  382, 1245, 307,  1733, 281,  261,  1819, 307,  664,
        14,   2041, 280,  261,  728,  798,  326,  1965, 305,  296, 1520, 457,  339,  267,  288,  66,   431,  13,
        76,   290,  1719, 370,  26,   221,  20,   25,   18,   16,  17,   24,   19,   14,   426,  733,  283,  261,
        936,  604,  14,   199,  1127, 370,  261,  728,  798,  326, 1965, 305,  296,  471,  650,  339,  267,  288,
        66,   431,  13,   76,   290,  1719, 272,  1223, 270,  293, 261,  531,  86,   1406, 1040, 1155, 31,   382,
        728,  798,  326,  1965, 305,  296,  471,  650,  339,  267, 288,  66,   431,  13,   76,   290,  1719, 272,
        1223, 270,  293,  261,  531,  86,   1406, 1040, 1155, 370, 221};
    /* "4920183" becomes "7751296"; in key corruption the readout asks for the answer's log-probability alone */
    static const int32_t right[] = {20, 25, 18, 16, 17, 24, 19};
    static const int32_t wrong[] = {23, 23, 21, 17, 18, 25, 22};
    enum { N = sizeof prompt / sizeof prompt[0], NEEDLE = 78 };
    int32_t corrupt[N];
    memcpy(corrupt, prompt, sizeof prompt);
    memcpy(corrupt + NEEDLE, wrong, sizeof wrong);
    hh_probe_pair pair = {
        .prompt = prompt, .corrupt = corrupt, .right = right, .wrong = wrong, .n_prompt = N, .n_answer = 7};
    compare_with_brute_force(m, &pair, 0.5, 5, senders, tolerance);
    pair.wrong = NULL;
    compare_with_brute_force(m, &pair, 0.5, 5, senders, tolerance);
    hh_model_close(m);
}

#endif
