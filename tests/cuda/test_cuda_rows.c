/* The row-wise ops of the CUDA backend against the CPU: every op in float32 and bf16, odd sizes, rows further apart than
 * dense, no tokens, one token, several spans; gradients repeat bit for bit. */
#include "cuda/both.h"

/* -- norms -- */

/* x [T,C] when h is 0, else [T,h,n]. */
static both rows_of(int64_t T, int64_t h, int64_t n, int64_t pad) {
    return h ? twin_act(3, T, h, n, pad) : twin_act(2, T, n, 0, pad);
}

static void check_rmsnorm(int64_t T, int64_t h, int64_t n, int64_t pad, bool weighted) {
    twin_reset();
    T = at_most(T, 40);
    both x = rows_of(T, h, n, pad), y = rows_of(T, h, n, 0), dy = rows_of(T, h, n, 2 * pad), dx = rows_of(T, h, n, pad);
    both rstd = h ? twin_real(2, T, h, 0, 1, 0) : twin_real(1, T, 0, 0, 1, 0);
    both w = weighted ? twin_real(1, n, 0, 0, 1, 1) : nothing, dw = weighted ? twin_real(1, n, 0, 0, 1, 0) : nothing;
    ON_BOTH BE->ops->rmsnorm_fwd(BE, ON(y), ON(rstd), ON(x), ON(w), 1e-6);
    assert_twins(y);
    assert_twins(rstd);
    ON_BOTH BE->ops->rmsnorm_bwd(BE, ON(dx), ON(dw), ON(dy), ON(x), ON(w), ON(rstd), true);
    assert_twins(dx);
    if (weighted) assert_twins(dw);
    if (weighted) assert_repeats(dw, BE->ops->rmsnorm_bwd(BE, dx.gpu, dw.gpu, dy.gpu, x.gpu, w.gpu, rstd.gpu, false));
    ON_BOTH BE->ops->rmsnorm_bwd(BE, ON(dy), HH_NONE, ON(dy), ON(x), ON(w), ON(rstd), false); /* dx is dy */
    assert_twins(dy);
    ON_BOTH BE->ops->rmsnorm_fwd(BE, ON(x), HH_NONE, ON(x), ON(w), 1e-6); /* in place */
    assert_twins(x);
}

/* The residual stream: x takes in d and is normed. */
static void check_add_rmsnorm(int64_t T, int64_t n, int64_t pad) {
    twin_reset();
    both x = rows_of(T, 0, n, pad), d = rows_of(T, 0, n, 0), y = rows_of(T, 0, n, pad),
         rstd = twin_real(1, T, 0, 0, 1, 0);
    both w = twin_real(1, n, 0, 0, 1, 1);
    ON_BOTH BE->ops->add_rmsnorm_fwd(BE, ON(y), ON(rstd), ON(x), ON(d), ON(w), 1e-6);
    assert_twins(x);
    assert_twins(y);
    assert_twins(rstd);
}

static void rmsnorm(void) {
    check_add_rmsnorm(67, 576, 0);
    check_add_rmsnorm(5, 2048, 8);
    check_add_rmsnorm(5, 5000, 0);
    check_add_rmsnorm(17, 577, 3);
    check_add_rmsnorm(0, 64, 0);
    check_rmsnorm(67, 0, 576, 0, true);
    check_rmsnorm(33, 0, 2048, 8, true);
    check_rmsnorm(9, 0, 5000, 0, true);
    check_rmsnorm(7, 0, 512, 0, true);
    check_rmsnorm(3, 0, 12000, 0, true);
    check_rmsnorm(5, 0, 17000, 0, true);
    check_rmsnorm(17, 0, 577, 3, true);
    check_rmsnorm(40, 0, 77, 1, false);
    check_rmsnorm(31, 0, 100, 4, true); /* aligned rows, and a part of a pack at their end */
    check_rmsnorm(1, 0, 576, 0, true);
    check_rmsnorm(0, 0, 576, 0, true);
    check_rmsnorm(67, 3, 64, 24, true);
    check_rmsnorm(41, 2, 128, 0, true);
    check_rmsnorm(19, 5, 96, 7, true);
    check_rmsnorm(13, 3, 20, 0, true);
    check_rmsnorm(700, 4, 32, 0, false);
    check_rmsnorm(1300, 3, 64, 0, true);
}

static void check_l2norm(int64_t T, int64_t h, int64_t n, int64_t pad, double scale, bool zero) {
    twin_reset();
    both x = rows_of(T, h, n, pad), y = rows_of(T, h, n, 0), dy = rows_of(T, h, n, pad),
         r = twin_real(2, T, h, 0, 1, 0);
    if (zero) { /* a zero row has a finite gradient, of a thousand */
        for (int64_t i = 0; i < h * n; i++) hh_row(x.cpu, 1)[i] = 0;
        twin_upload(x);
    }
    ON_BOTH BE->ops->l2norm_fwd(BE, ON(y), ON(r), ON(x), scale);
    assert_twins(y);
    assert_twins(r);
    ON_BOTH BE->ops->l2norm_bwd(BE, ON(dy), ON(dy), ON(y), ON(r), scale);
    assert_twins(dy);
    ON_BOTH BE->ops->l2norm_fwd(BE, ON(x), ON(r), ON(x), scale);
    assert_twins(x);
}

static void l2norm(void) {
    check_l2norm(67, 3, 64, 8, 0.125, false);
    check_l2norm(35, 2, 128, 0, 1, false);
    check_l2norm(21, 4, 96, 3, 1, false);
    check_l2norm(9, 1, 1024, 0, 0.5, false);
    check_l2norm(7, 2, 300, 0, 0.5, false);
    check_l2norm(50, 7, 32, 0, 1, true);
    check_l2norm(11, 3, 10, 1, 1, false);
    check_l2norm(1, 2, 64, 0, 1, false);
    check_l2norm(0, 2, 64, 0, 1, false);
}

static void check_headnorm(int64_t T, int64_t H, int64_t D, int64_t pad, bool scaled, bool weighted) {
    twin_reset();
    T = at_most(T, 40);
    both o = rows_of(T, H, D, pad), y = rows_of(T, H, D, 0), dy = rows_of(T, H, D, pad), d = rows_of(T, H, D, pad);
    both rstd = twin_real(2, T, H, 0, 1, 0);
    both gamma = scaled ? twin_real(1, H, 0, 0, 1, 1) : nothing,
         dgamma = scaled ? twin_real(1, H, 0, 0, 1, 0) : nothing;
    both weight = weighted ? twin_real(2, T, H, 0, 0.3, 1) : nothing;
    both dweight = weighted ? twin_real(2, T, H, 0, 1, 0) : nothing;
    ON_BOTH BE->ops->headnorm_fwd(BE, ON(y), ON(rstd), ON(o), ON(gamma), ON(weight), 1e-6);
    assert_twins(y);
    assert_twins(rstd);
    ON_BOTH BE->ops->headnorm_bwd(BE, ON(d), ON(dgamma), ON(dweight), ON(dy), ON(o), ON(gamma), ON(weight), ON(rstd));
    assert_twins(d);
    if (scaled) assert_twins(dgamma);
    if (weighted) assert_twins(dweight);
    if (scaled)
        assert_repeats(dgamma, BE->ops->headnorm_bwd(BE, d.gpu, dgamma.gpu, dweight.gpu, dy.gpu, o.gpu, gamma.gpu,
                                                     weight.gpu, rstd.gpu));
    ON_BOTH BE->ops->headnorm_bwd(BE, ON(dy), HH_NONE, HH_NONE, ON(dy), ON(o), ON(gamma), ON(weight), ON(rstd));
    assert_twins(dy);
    ON_BOTH BE->ops->headnorm_fwd(BE, ON(o), ON(rstd), ON(o), ON(gamma), ON(weight), 1e-6);
    assert_twins(o);
}

static void headnorm(void) {
    check_headnorm(67, 9, 64, 0, true, false);
    check_headnorm(41, 16, 128, 8, true, true);
    check_headnorm(19, 3, 96, 5, false, true);
    check_headnorm(23, 4, 32, 0, false, false);
    check_headnorm(5, 3, 300, 0, true, false);
    check_headnorm(3, 2, 1000, 0, true, true);
    check_headnorm(6, 2, 130, 1, true, true);
    check_headnorm(1500, 9, 64, 0, true, true);
    check_headnorm(1, 9, 64, 0, true, true);
    check_headnorm(0, 9, 64, 0, true, false);
}

static void head_weights(void) {
    static const int64_t sizes[][2] = {{70, 9}, {33, 32}, {5, 100}, {1, 3}, {0, 4}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t T = sizes[i][0], H = sizes[i][1];
        twin_reset();
        both z = twin_act(2, T, H, 0, 5), weight = twin_real(2, T, H, 0, 1, 0), d = twin_real(2, T, H, 0, 1, 0);
        both dz = twin_act(2, T, H, 0, 3);
        ON_BOTH BE->ops->head_weight_fwd(BE, ON(weight), ON(z));
        assert_twins(weight);
        ON_BOTH BE->ops->head_weight_bwd(BE, ON(dz), ON(d), ON(weight));
        assert_twins(dz);
    }
}

/* -- rope -- */

static void check_rope(int64_t T, int64_t h, int64_t D, int64_t pad, const hh_span *span, int64_t n_spans) {
    twin_reset();
    double inv_freq[128];
    for (int64_t i = 0; i < D / 2; i++) inv_freq[i] = pow(10000, -2.0 * (double)i / (double)D);
    both cosine = twin_real(2, T, D / 2, 0, 1, 0), sine = twin_real(2, T, D / 2, 0, 1, 0),
         x = twin_act(3, T, h, D, pad);
    ON_BOTH BE->ops->rope_table(BE, ON(cosine), ON(sine), inv_freq, 1.25, span, n_spans);
    assert_twins(cosine);
    assert_twins(sine);
    ON_BOTH BE->ops->rope(BE, ON(x), ON(cosine), ON(sine), false);
    assert_twins(x);
    ON_BOTH BE->ops->rope(BE, ON(x), ON(cosine), ON(sine), true);
    assert_twins(x);
}

static void rope(void) {
    const hh_span one[] = {{0, 67, 0}}, far[] = {{0, 5, 500000}, {5, 5, 7}, {5, 6, 20}, {8, 40, 0}},
                  last[] = {{0, 1, 9}};
    check_rope(67, 9, 64, 0, one, 1);
    check_rope(67, 3, 128, 16, one, 1);
    check_rope(43, 2, 96, 5, far, 4);
    check_rope(40, 3, 32, 8, far, 4);
    check_rope(40, 3, 20, 0, far, 4);
    check_rope(1, 9, 64, 0, last, 1);
    check_rope(3, 1, 256, 0, last, 0);
}

/* -- convolution -- */

static void check_conv(int64_t T, int64_t N, int64_t pad, const hh_span *span, int64_t n_spans, bool tails) {
    twin_reset();
    both x = twin_act(2, T, N, 0, pad), y = twin_act(2, T, N, 0, 0), w = twin_real(2, N, 4, 0, 1, 0);
    both tail[8];
    hh_tensor side_tail[2][8];
    for (int64_t s = 0; s < n_spans; s++) {
        tail[s] = twin_real(2, 3, N, 0, 1, 0);
        side_tail[0][s] = tail[s].cpu;
        side_tail[1][s] = tail[s].gpu;
    }
    ON_BOTH BE->ops->conv_fwd(BE, ON(y), ON(x), ON(w), tails ? side_tail[side] : NULL, span, n_spans);
    assert_twins(y);
    for (int64_t s = 0; s < n_spans; s++) assert_twins(tail[s]);
    both dx = twin_act(2, T, N, 0, pad), dy = twin_act(2, T, N, 0, 0), dw = twin_real(2, N, 4, 0, 1, 0);
    ON_BOTH BE->ops->conv_bwd(BE, ON(dx), ON(dw), ON(dy), ON(x), ON(w), span, n_spans);
    assert_twins(dx);
    assert_twins(dw);
    assert_repeats(dw, BE->ops->conv_bwd(BE, dx.gpu, dw.gpu, dy.gpu, x.gpu, w.gpu, span, n_spans));
}

static void conv(void) {
    const hh_span one[] = {{0, 67, 0}}, all[] = {{0, 2000, 0}}, single[] = {{0, 1, 0}, {1, 2, 5}, {2, 3, 0}};
    const hh_span many[] = {{0, 3, 0},  {3, 3, 0},   {3, 4, 2},   {6, 8, 0},
                            {8, 25, 1}, {25, 41, 0}, {41, 41, 0}, {45, 60, 0}};
    for (int tails = 0; tails < 2; tails++) {
        check_conv(67, 192, 8, one, 1, tails);
        if (!quick()) check_conv(2000, 64, 0, all, 1, tails);
        check_conv(60, 320, 4, many, 8, tails);
        check_conv(60, 130, 0, many, 8, tails);
        check_conv(60, 37, 3, many, 8, tails);
        check_conv(3, 576, 0, single, 3, tails);
        check_conv(5, 8, 0, one, 0, tails);
    }
}

/* -- a mixer's inputs, at once -- */

typedef struct input_case {
    int64_t T, h, D, pad;
    bool conv, keep, norm, rotate, unit, gates, tails;
} input_case;

/* Tensors of one path on both sides. */
typedef struct path_twins {
    both x, y, conv, taps, norm, rstd, r, tail[8];
    hh_tensor side_tail[2][8];
} path_twins;

static path_twins make_path(const input_case *c, int64_t n_spans, bool value) {
    path_twins p = {.x = twin_act(3, c->T, c->h, c->D, c->pad), .y = twin_act(3, c->T, c->h, c->D, 0)};
    p.conv = p.y;
    if (c->conv && c->keep && !value) p.conv = twin_act(3, c->T, c->h, c->D, c->pad);
    if (c->conv) p.taps = twin_real(2, c->h * c->D, 4, 0, 0.5, 0);
    if (c->norm && !value) p.norm = twin_real(1, c->D, 0, 0, 0.3, 1);
    if (c->norm && c->keep && !value) p.rstd = twin_real(2, c->T, c->h, 0, 1, 0);
    if (c->unit && !value) p.r = twin_real(2, c->T, c->h, 0, 1, 0);
    for (int64_t s = 0; s < n_spans; s++) {
        p.tail[s] = twin_real(2, 3, c->h * c->D, 0, 1, 0);
        p.side_tail[0][s] = p.tail[s].cpu;
        p.side_tail[1][s] = p.tail[s].gpu;
    }
    return p;
}

static void check_inputs(const input_case *c, const hh_span *span, int64_t n_spans) {
    twin_reset();
    const int n = c->conv ? 3 : 2;
    path_twins p[3];
    for (int i = 0; i < n; i++) p[i] = make_path(c, n_spans, i == 2);
    both cosine = twin_real(2, c->T, c->D / 2, 0, 1, 0), sine = twin_real(2, c->T, c->D / 2, 0, 1, 0);
    both a = twin_act(2, c->T, c->h, 0, 3), b = twin_act(2, c->T, c->h, 0, 3);
    both g = twin_real(2, c->T, c->h, 0, 1, 0), beta = twin_real(2, c->T, c->h, 0, 1, 0);
    both A_log = twin_real(1, c->h, 0, 0, 1, 0), dt = twin_real(1, c->h, 0, 0, 1, 0);
    ON_BOTH {
        hh_mixer_inputs in = {.n_paths = n, .cos = ON(cosine), .sin = ON(sine), .eps = 1e-6, .beta_scale = 2};
        for (int i = 0; i < n; i++)
            in.path[i] = (hh_mixer_path){.x = ON(p[i].x),
                                         .y = ON(p[i].y),
                                         .conv = ON(p[i].conv),
                                         .taps = ON(p[i].taps),
                                         .tail = c->tails ? p[i].side_tail[side] : NULL,
                                         .norm = ON(p[i].norm),
                                         .rstd = ON(p[i].rstd),
                                         .rotate = c->rotate && i < 2,
                                         .r = ON(p[i].r),
                                         .scale = i ? 1 : 0.125};
        if (c->gates)
            in.g = ON(g), in.beta = ON(beta), in.a = ON(a), in.b = ON(b), in.A_log = ON(A_log), in.dt_bias = ON(dt);
        BE->ops->mixer_inputs_fwd(BE, &in, span, n_spans);
    }
    for (int i = 0; i < n; i++) {
        assert_twins(p[i].y);
        assert_twins(p[i].x);
        assert_twins(p[i].conv);
        if (p[i].rstd.cpu.data) assert_twins(p[i].rstd);
        if (p[i].r.cpu.data) assert_twins(p[i].r);
        for (int64_t s = 0; s < n_spans; s++) assert_twins(p[i].tail[s]);
    }
    assert_twins(g);
    assert_twins(beta);
}

static void mixer_inputs(void) {
    const hh_span one[] = {{0, 67, 0}}, single[] = {{0, 1, 4}, {1, 2, 0}, {2, 3, 9}};
    const hh_span many[] = {{0, 3, 0},  {3, 3, 0},   {3, 4, 2},   {4, 8, 0},
                            {8, 25, 1}, {25, 41, 0}, {41, 41, 0}, {41, 60, 0}};
    const input_case cases[] = {
        {.h = 3,
         .D = 64,
         .pad = 8,
         .conv = true,
         .keep = true,
         .norm = true,
         .rotate = true,
         .unit = true,
         .gates = true},
        {.h = 2, .D = 128, .conv = true, .norm = true, .rotate = true, .unit = true, .gates = true, .tails = true},
        {.h = 5, .D = 64, .pad = 4, .conv = true, .rotate = true, .unit = true, .gates = true, .tails = true},
        {.h = 2, .D = 96, .conv = true, .keep = true, .norm = true, .rotate = true, .unit = true, .tails = true},
        {.h = 2, .D = 32, .pad = 8, .norm = true, .rotate = true, .unit = true, .gates = true},
        {.h = 4, .D = 64, .norm = true},
        {.h = 4, .D = 128, .pad = 8, .keep = true, .norm = true, .rotate = true},
        {.h = 3, .D = 64, .rotate = true},
        {.h = 1, .D = 256, .conv = true, .norm = true, .rotate = true, .unit = true},
        {.h = 2,
         .D = 64,
         .pad = 3,
         .conv = true,
         .norm = true,
         .rotate = true,
         .unit = true,
         .gates = true,
         .tails = true},
        {.h = 3, .D = 20, .conv = true, .keep = true, .norm = true, .rotate = true, .unit = true, .tails = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        input_case c = cases[i];
        c.T = 67;
        if (!quick()) check_inputs(&c, one, 1);
        c.T = 60;
        check_inputs(&c, many, 8);
        c.T = 3;
        check_inputs(&c, single, 3);
    }
}

/* -- gates -- */

static void check_gates(int64_t T, int64_t h) {
    twin_reset();
    T = at_most(T, 70);
    both a = twin_tensor(tw.gpu->activation, 2, T, h, 0, 7, 4, 0),
         b = twin_tensor(tw.gpu->activation, 2, T, h, 0, 7, 4, 0);
    both g = twin_real(2, T, h, 0, 1, 0), beta = twin_real(2, T, h, 0, 1, 0);
    both A_log = twin_real(1, h, 0, 0, 1, 0), dt = twin_real(1, h, 0, 0, 1, 0);
    if (T) hh_row(a.cpu, 0)[0] = 90, hh_row(b.cpu, 0)[0] = -90; /* both tails */
    if (T > 1) hh_row(a.cpu, 1)[0] = -90, hh_row(b.cpu, 1)[0] = 90;
    twin_upload(a);
    twin_upload(b);
    ON_BOTH BE->ops->gdn_gates_fwd(BE, ON(g), ON(beta), ON(a), ON(b), ON(A_log), ON(dt), 2);
    assert_twins(g);
    assert_twins(beta);
    both dg = twin_real(2, T, h, 0, 1, 0), dbeta = twin_real(2, T, h, 0, 1, 0);
    both da = twin_act(2, T, h, 0, 1), db = twin_act(2, T, h, 0, 0);
    both dA = twin_real(1, h, 0, 0, 1, 0), ddt = twin_real(1, h, 0, 0, 1, 0);
    ON_BOTH BE->ops->gdn_gates_bwd(BE, ON(da), ON(db), ON(dA), ON(ddt), ON(dg), ON(dbeta), ON(a), ON(b), ON(A_log),
                                   ON(dt), 2);
    assert_twins(da);
    assert_twins(db);
    assert_twins(dA);
    assert_twins(ddt);
    assert_repeats(dA, BE->ops->gdn_gates_bwd(BE, da.gpu, db.gpu, dA.gpu, ddt.gpu, dg.gpu, dbeta.gpu, a.gpu, b.gpu,
                                              A_log.gpu, dt.gpu, 2));
}

static void gates(void) {
    check_gates(70, 9);
    check_gates(1, 5);
    check_gates(0, 5);
    check_gates(3000, 3);
    check_gates(40, 300);
}

/* -- gated activations -- */

static void check_activations(int64_t T, int64_t n, int64_t pad) {
    twin_reset();
    n = at_most(n, 200);
    both x = twin_tensor(tw.gpu->activation, 2, T, n, 0, pad, 4, 0),
         z = twin_tensor(tw.gpu->activation, 2, T, n, 0, pad, 4, 0);
    both y = twin_act(2, T, n, 0, 0), dy = twin_act(2, T, n, 0, pad), dx = twin_act(2, T, n, 0, 0),
         dz = twin_act(2, T, n, 0, pad);
    if (T) hh_row(z.cpu, 0)[0] = 100, hh_row(z.cpu, 0)[1] = -100, hh_row(x.cpu, 0)[2] = -100, hh_row(x.cpu, 0)[3] = 100;
    twin_upload(z);
    twin_upload(x);
    ON_BOTH BE->ops->sigmoid_gate_fwd(BE, ON(y), ON(x), ON(z));
    assert_twins(y);
    ON_BOTH BE->ops->sigmoid_gate_bwd(BE, ON(dx), ON(dz), ON(dy), ON(x), ON(z));
    assert_twins(dx);
    assert_twins(dz);
    ON_BOTH BE->ops->swiglu_fwd(BE, ON(y), ON(x), ON(z));
    assert_twins(y);
    ON_BOTH BE->ops->swiglu_bwd(BE, ON(dx), ON(dz), ON(dy), ON(x), ON(z));
    assert_twins(dx);
    assert_twins(dz);
    ON_BOTH BE->ops->sigmoid_gate_bwd(BE, ON(dx), ON(dy), ON(dy), ON(x), ON(z)); /* dz is dy */
    assert_twins(dy);
    ON_BOTH BE->ops->swiglu_bwd(BE, ON(x), ON(z), ON(y), ON(x), ON(z)); /* a buffer becomes its own gradient */
    assert_twins(x);
    assert_twins(z);
    ON_BOTH BE->ops->swiglu_fwd(BE, ON(x), ON(x), ON(z));
    assert_twins(x);
    ON_BOTH BE->ops->sigmoid_gate_fwd(BE, ON(x), ON(x), ON(z));
    assert_twins(x);
}

static void activations(void) {
    check_activations(67, 1536, 0);
    check_activations(67, 200, 16);
    check_activations(33, 37, 3);
    check_activations(33, 38, 2); /* dense or aligned in some of the tensors alone */
    check_activations(1, 1536, 0);
    check_activations(0, 8, 0);
}

/* A fused projection's columns: views of one buffer. */
static void views_of_one_buffer(void) {
    twin_reset();
    both wide = twin_act(2, 45, 200, 0, 8), y = twin_act(2, 45, 96, 0, 0);
    ON_BOTH BE->ops->swiglu_fwd(BE, ON(y), hh_tensor_columns(ON(wide), 0, 96), hh_tensor_columns(ON(wide), 96, 192));
    assert_twins(y);
    ON_BOTH BE->ops->swiglu_fwd(BE, ON(y), hh_tensor_columns(ON(wide), 3, 99), hh_tensor_columns(ON(wide), 101, 197));
    assert_twins(y);
    both rstd = twin_real(2, 45, 3, 0, 1, 0);
    ON_BOTH BE->ops->rmsnorm_fwd(BE, hh_tensor_split(ON(y), 3), ON(rstd),
                                 hh_tensor_split(hh_tensor_columns(ON(wide), 8, 104), 3), HH_NONE, 1e-5);
    assert_twins(y);
    ON_BOTH BE->ops->rmsnorm_fwd(BE, hh_tensor_split(ON(y), 3), ON(rstd),
                                 hh_tensor_split(hh_tensor_columns(ON(wide), 9, 105), 3), HH_NONE, 1e-5);
    assert_twins(y);
}

/* -- losses and the optimizer -- */

static void check_mse(int64_t T, int64_t n, int64_t pad) {
    twin_reset();
    T = at_most(T, 70);
    both y = twin_act(2, T, n, 0, pad), target = twin_act(2, T, n, 0, 0), dy = twin_act(2, T, n, 0, pad);
    both loss = twin_real(1, 1, 0, 0, 0, 3);
    ON_BOTH BE->ops->mse(BE, ON(loss), ON(dy), ON(y), ON(target), 0.01);
    assert_twins(loss);
    assert_twins(dy);
    ON_BOTH BE->ops->mse(BE, ON(loss), HH_NONE, ON(y), ON(target), 0.01);
    assert_twins(loss);
    assert_repeats(loss, BE->ops->mse(BE, loss.gpu, HH_NONE, y.gpu, target.gpu, 0.01));
}

static void losses(void) {
    check_mse(67, 576, 0);
    check_mse(67, 37, 3);
    check_mse(1200, 800, 8); /* more than one round of a block */
    check_mse(0, 8, 0);
}

static void optimizer(void) {
    static const int64_t sizes[] = {1, 3, 1000, 70001, 3000000, 0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = at_most(sizes[i], 3000);
        twin_reset();
        both p = twin_real(2, 1, n, 0, 1, 0), m = twin_real(2, 1, n, 0, 0.1, 0), v = twin_real(2, 1, n, 0, 0.1, 0);
        both g = twin_real(2, 1, n, 0, 1, 0);
        for (int64_t k = 0; k < n; k++) hh_row(v.cpu, 0)[k] *= hh_row(v.cpu, 0)[k];
        twin_upload(v);
        for (int64_t lo = 0; lo < 2 && lo <= n; lo++) { /* at 16 bytes, and not */
            ON_BOTH BE->ops->adamw(BE, hh_tensor_columns(ON(p), lo, n), hh_tensor_columns(ON(m), lo, n),
                                   hh_tensor_columns(ON(v), lo, n), hh_tensor_columns(ON(g), lo, n), 1e-2, 0.9, 0.95,
                                   1e-8, 0.1, 0.5, 3);
            double sum[2] = {1, 1}, again = 1;
            ON_BOTH BE->ops->sum_squares(BE, &sum[side], hh_tensor_columns(ON(g), lo, n));
            tw.gpu->ops->sum_squares(tw.gpu, &again, hh_tensor_columns(g.gpu, lo, n));
            assert_near(sum[1], sum[0], 1e-12 * sum[0]);
            assert_true(again == sum[1]);
        }
        assert_twins(p);
        assert_twins(m);
        assert_twins(v);
    }
}

#define IN_BOTH_TYPES(name)                                                                                            \
    static void name##_is_the_cpus(void **unused) {                                                                    \
        (void)unused;                                                                                                  \
        in_both_types(name);                                                                                           \
    }
IN_BOTH_TYPES(rmsnorm)
IN_BOTH_TYPES(l2norm)
IN_BOTH_TYPES(headnorm)
IN_BOTH_TYPES(head_weights)
IN_BOTH_TYPES(rope)
IN_BOTH_TYPES(conv)
IN_BOTH_TYPES(mixer_inputs)
IN_BOTH_TYPES(gates)
IN_BOTH_TYPES(activations)
IN_BOTH_TYPES(views_of_one_buffer)
IN_BOTH_TYPES(losses)
IN_BOTH_TYPES(optimizer)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_is_the_cpus),      cmocka_unit_test(l2norm_is_the_cpus),
        cmocka_unit_test(headnorm_is_the_cpus),     cmocka_unit_test(head_weights_is_the_cpus),
        cmocka_unit_test(rope_is_the_cpus),         cmocka_unit_test(conv_is_the_cpus),
        cmocka_unit_test(gates_is_the_cpus),        cmocka_unit_test(activations_is_the_cpus),
        cmocka_unit_test(losses_is_the_cpus),       cmocka_unit_test(optimizer_is_the_cpus),
        cmocka_unit_test(mixer_inputs_is_the_cpus), cmocka_unit_test(views_of_one_buffer_is_the_cpus),
    };
    return cmocka_run_group_tests_name("cuda row-wise ops", tests, NULL, NULL);
}
