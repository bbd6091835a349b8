/* What moves numbers on the GPU: copies between all types bit for bit as on the CPU, embeddings, rows by lists, sums by
 * target. */
#include "cuda/both.h"

static const hh_dtype floats[] = {HH_DTYPE_F32, HH_DTYPE_BF16, HH_DTYPE_F16};

/* GPU rows of y are the bytes that the CPU makes of `from` (float32). */
static void assert_bytes(both y, const float *from) {
    const int64_t n = hh_tensor_row_count(y.gpu);
    size_t bytes, row = hh_dtype_bytes(y.gpu.dtype, n);
    char *got = twin_bytes(y, &bytes), *want = hh_arena_alloc(&tw.host, row + 1);
    for (int64_t i = 0; i < y.gpu.dim[0]; i++) {
        hh_quantise(y.gpu.dtype, from + i * n, n, want);
        assert_memory_equal(got + (size_t)i * row, want, row);
    }
}

static const float *dense(both x) {
    const int64_t n = hh_tensor_row_count(x.cpu);
    float *out = hh_arena_alloc(&tw.host, (size_t)(x.cpu.dim[0] * n + 1) * sizeof *out);
    for (int64_t i = 0; i < x.cpu.dim[0]; i++)
        for (int64_t j = 0; j < n; j++) out[i * n + j] = hh_row(x.cpu, i)[j];
    return out;
}

static void check_copy(hh_dtype to, hh_dtype from, int64_t T, int64_t n, int64_t pad_to, int64_t pad_from) {
    twin_reset();
    both x = twin_tensor(from, 2, T, n, 0, pad_from, 1, 0), y = twin_tensor(to, 2, T, n, 0, pad_to, 1, 0);
    tw.gpu->ops->copy(tw.gpu, y.gpu, x.gpu);
    assert_bytes(y, dense(x));
}

static void copies_between_floats(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    for (int to = 0; to < 3; to++)
        for (int from = 0; from < 3; from++) {
            check_copy(floats[to], floats[from], 23, 64, 0, 0);
            check_copy(floats[to], floats[from], 23, 64, 8, 16);
            check_copy(floats[to], floats[from], 19, 37, 0, 3);
            check_copy(floats[to], floats[from], 19, 36, 4, 0);
            check_copy(floats[to], floats[from], 1, 7, 0, 0);
            check_copy(floats[to], floats[from], 0, 8, 0, 0);
        }
    twin_close();
}

static void copies_to_blocks(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    for (int from = 0; from < 3; from++) {
        check_copy(HH_DTYPE_Q8_0, floats[from], 23, 64, 0, 0);
        check_copy(HH_DTYPE_Q8_0, floats[from], 23, 96, 32, 5);
        check_copy(HH_DTYPE_Q8_0, floats[from], 1, 32, 0, 0);
    }
    twin_reset(); /* a block of zeros, and the largest magnitudes */
    both x = twin_tensor(HH_DTYPE_F32, 2, 2, 32, 0, 0, 0, 0), y = twin_tensor(HH_DTYPE_Q8_0, 2, 2, 32, 0, 0, 1, 0);
    hh_row(x.cpu, 1)[3] = -60000;
    hh_row(x.cpu, 1)[7] = 1;
    twin_upload(x);
    tw.gpu->ops->copy(tw.gpu, y.gpu, x.gpu);
    assert_bytes(y, dense(x));
    twin_close();
}

/* Blocks of any bits but for scales, which are ordinary numbers. */
static char *random_blocks(hh_dtype type, int64_t n, size_t *bytes) {
    const size_t size = hh_dtype_block_bytes(type);
    *bytes = hh_dtype_bytes(type, n);
    char *out = hh_arena_alloc(&tw.host, *bytes);
    for (size_t i = 0; i < *bytes; i++) out[i] = (char)(hh_rng_u64(&tw.rng) >> 32);
    const size_t scale = type == HH_DTYPE_Q6_K ? 208 : 0,
                 scales = type == HH_DTYPE_Q6_K || type == HH_DTYPE_Q8_0 ? 1 : 2;
    for (size_t at = 0; at < *bytes; at += size)
        for (size_t i = 0; i < scales; i++) {
            if (i && (type == HH_DTYPE_Q4_0 || type == HH_DTYPE_Q5_0)) continue;
            uint16_t half = hh_f16_from_float((float)(0.01 * hh_rng_normal(&tw.rng)));
            memcpy(out + at + scale + 2 * i, &half, 2);
        }
    return out;
}

static const hh_dtype block_types[] = {HH_DTYPE_Q8_0, HH_DTYPE_Q4_0, HH_DTYPE_Q4_1, HH_DTYPE_Q5_0,
                                       HH_DTYPE_Q5_1, HH_DTYPE_Q4_K, HH_DTYPE_Q5_K, HH_DTYPE_Q6_K};

static void check_blocks(hh_dtype type, int64_t T, int64_t n) {
    twin_reset();
    size_t bytes;
    char *blocks = random_blocks(type, T * n, &bytes);
    void *device = hh_arena_alloc(&tw.device, bytes);
    tw.gpu->to_device(tw.gpu, device, blocks, bytes);
    hh_tensor x = hh_tensor_2d(device, type, T, n);
    float *want = hh_arena_alloc(&tw.host, (size_t)(T * n) * sizeof *want);
    hh_dequantise_float(type, blocks, T * n, want);
    for (int to = 0; to < 3; to++)
        for (int pad = 0; pad < at_most(16, 6); pad += 5) {
            both y = twin_tensor(floats[to], 2, T, n, 0, pad, 1, 0);
            tw.gpu->ops->copy(tw.gpu, y.gpu, x);
            assert_bytes(y, want);
        }
    both same = twin_tensor(HH_DTYPE_F32, 2, T, n, 0, 0, 1, 0); /* the embedding of stored weights */
    hh_tensor stored = hh_tensor_2d(blocks, type, T, n);
    int32_t ids[9];
    for (int i = 0; i < 9; i++) ids[i] = (int32_t)((i * 5 + 3) % T);
    both y = twin_act(2, 9, n, 0, 0);
    ON_BOTH BE->ops->embedding_fwd(BE, ON(y), side ? x : stored, ids);
    assert_twins(y);
    tw.gpu->ops->copy(tw.gpu, hh_tensor_1d(same.gpu.data, HH_DTYPE_F32, T * n), x); /* shapes may differ when dense */
    assert_bytes(same, want);
}

static void blocks_are_the_cpus_bit_for_bit(void **unused) {
    (void)unused;
    if (!twin_open(HH_PRECISION_AUTO)) skip();
    for (size_t i = 0; i < sizeof block_types / sizeof *block_types; i++) {
        check_blocks(block_types[i], 7, 512);
        if (!quick()) check_blocks(block_types[i], 1, 256);
    }
    twin_close();
}

static void embeddings(void) {
    static const int64_t widths[] = {576, 37, 64};
    static const hh_dtype types[] = {HH_DTYPE_F32, HH_DTYPE_BF16, HH_DTYPE_F16, HH_DTYPE_Q8_0};
    for (int i = 0; i < 3; i++)
        for (int type = 0; type < 4; type++) {
            if (hh_dtype_is_quantised(types[type]) && widths[i] % 32) continue;
            twin_reset();
            int32_t ids[70];
            for (int t = 0; t < 70; t++) ids[t] = (t * 13 + 1) % 41;
            both w = twin_tensor(types[type], 2, 41, widths[i], 0, 0, 1, 0), y = twin_act(2, 70, widths[i], 0, 0);
            ON_BOTH BE->ops->embedding_fwd(BE, ON(y), ON(w), ids);
            assert_twins(y);
            ON_BOTH BE->ops->embedding_fwd(BE, hh_tensor_rows(ON(y), 0, 1), ON(w), ids + 3);
            ON_BOTH BE->ops->embedding_fwd(BE, hh_tensor_rows(ON(y), 0, 0), ON(w), ids);
            assert_twins(y);
        }
}

/* Targets: all different, all the same, and most the same. */
static void check_sums(int64_t T, int64_t V, int64_t n, int64_t pad, int often) {
    twin_reset();
    T = at_most(T, 200);
    int32_t *ids = hh_arena_alloc(&tw.host, (size_t)(T + 1) * sizeof *ids);
    for (int64_t t = 0; t < T; t++)
        ids[t] = often == 1                          ? (int32_t)(V - 1)
                 : often && hh_rng_below(&tw.rng, 3) ? (int32_t)(hh_rng_below(&tw.rng, 2))
                                                     : (int32_t)(t * 7 % V);
    both dw = twin_real(2, V, n, 0, 1, 0), dy = twin_act(2, T, n, 0, pad);
    ON_BOTH BE->ops->embedding_bwd(BE, ON(dw), ON(dy), ids);
    assert_twins(dw);
    assert_repeats(dw, BE->ops->embedding_bwd(BE, dw.gpu, dy.gpu, ids));
    both y = twin_act(2, V, n, 0, pad);
    ON_BOTH BE->ops->scatter_add_rows(BE, ON(y), ON(dy), ids);
    assert_twins(y);
    both x = twin_real(2, T, n, 0, 1, 0);
    ON_BOTH BE->ops->scatter_add_rows(BE, ON(y), ON(x), ids);
    assert_twins(y);
}

static void sums_by_target(void) {
    check_sums(50, 53, 576, 0, 0);
    check_sums(3000, 41, 72, 8, 2);
    check_sums(2500, 11, 37, 0, 2);
    check_sums(1000, 5, 320, 0, 1);
    check_sums(1, 5, 64, 0, 0);
    check_sums(0, 5, 64, 0, 0);
}

static void rows_by_list(void) {
    static const int64_t widths[] = {576, 37, 38};
    for (int i = 0; i < 3; i++) {
        twin_reset();
        int32_t rows[31];
        for (int t = 0; t < 31; t++) rows[t] = (t * 11 + 5) % 47;
        both x = twin_act(2, 47, widths[i], 0, 8), y = twin_act(2, 31, widths[i], 0, 0);
        ON_BOTH BE->ops->gather_rows(BE, ON(y), ON(x), rows);
        assert_twins(y);
        ON_BOTH BE->ops->gather_rows(BE, hh_tensor_rows(ON(y), 0, 0), ON(x), rows);
        assert_twins(y);
    }
}

static void fills_and_sums(void) {
    static const int64_t shapes[][3] = {{67, 64, 0}, {67, 64, 8}, {33, 37, 3}, {33, 37, 2}, {1, 5, 0}, {0, 8, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t T = shapes[i][0], n = shapes[i][1], pad = shapes[i][2];
        twin_reset();
        both x = twin_act(2, T, n, 0, pad), y = twin_act(2, T, n, 0, pad);
        both z = twin_real(2, T, n, 0, 1, 0);
        ON_BOTH BE->ops->axpy(BE, ON(y), 0.75, ON(x));
        assert_twins(y);
        ON_BOTH BE->ops->axpy(BE, ON(z), -2, ON(x));
        assert_twins(z);
        ON_BOTH BE->ops->axpy(BE, ON(y), 0.5, ON(z));
        assert_twins(y);
        ON_BOTH BE->ops->fill(BE, ON(y), -1.5);
        assert_twins(y);
        both half = twin_tensor(HH_DTYPE_F16, 2, T, n, 0, pad, 1, 0);
        ON_BOTH BE->ops->fill(BE, ON(half), 0.25);
        assert_twins(half);
        ON_BOTH BE->ops->fill(BE, ON(z), 0);
        assert_twins(z);
    }
}

/* Rows into caches of every type: each holds the bytes that the CPU makes of them, and nothing else has changed. */
static void cache_rows(void) {
    static const hh_dtype types[] = {HH_DTYPE_F32, HH_DTYPE_BF16, HH_DTYPE_Q8_0};
    const hh_span span[] = {{0, 7, 5}, {7, 7, 3}, {9, 10, 0}};
    for (int i = 0; i < 3; i++)
        for (int64_t D = 32; D <= 96; D += 64) {
            twin_reset();
            both k = twin_act(3, 11, 3, D, 5), v = twin_act(3, 11, 3, D, 0), cache[6];
            hh_kv kv[3];
            for (int c = 0; c < 6; c++) cache[c] = twin_tensor(types[i], 3, 14, 3, D, c % 2 ? 0 : 32, 1, 0);
            for (int s = 0; s < 3; s++) kv[s] = (hh_kv){cache[2 * s].gpu, cache[2 * s + 1].gpu};
            tw.gpu->ops->cache_append(tw.gpu, kv, k.gpu, v.gpu, span, 3);
            for (int s = 0; s < 3; s++)
                for (int64_t t = span[s].lo; t < span[s].hi; t++)
                    for (int c = 0; c < 2; c++) {
                        float row[3 * 96]; /* enough for any of the types */
                        hh_real *to = hh_row(cache[2 * s + c].cpu, span[s].pos + t - span[s].lo);
                        hh_quantise(types[i], hh_row(c ? v.cpu : k.cpu, t), 3 * D, row);
                        hh_dequantise(types[i], row, 3 * D, to);
                    }
            for (int c = 0; c < 6; c++) assert_true(twin_error(cache[c]) == 0);
        }
}

#define IN_BOTH_TYPES(name)                                                                                            \
    static void name##_are_the_cpus(void **unused) {                                                                   \
        (void)unused;                                                                                                  \
        in_both_types(name);                                                                                           \
    }
IN_BOTH_TYPES(embeddings)
IN_BOTH_TYPES(sums_by_target)
IN_BOTH_TYPES(rows_by_list)
IN_BOTH_TYPES(fills_and_sums)
IN_BOTH_TYPES(cache_rows)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_between_floats),           cmocka_unit_test(copies_to_blocks),
        cmocka_unit_test(blocks_are_the_cpus_bit_for_bit), cmocka_unit_test(embeddings_are_the_cpus),
        cmocka_unit_test(sums_by_target_are_the_cpus),     cmocka_unit_test(rows_by_list_are_the_cpus),
        cmocka_unit_test(fills_and_sums_are_the_cpus),     cmocka_unit_test(cache_rows_are_the_cpus),
    };
    return cmocka_run_group_tests_name("cuda copies", tests, NULL, NULL);
}
