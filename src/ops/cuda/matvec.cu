/* The linear map of a few tokens (decode): bound by reading the weights once, all parts in one launch, float32 ones as they
 * lie. One large bf16 matrix is cuBLASLt's, which reads it faster. */
#include "ops/cuda/products.h"

#include <cstdint>

enum {
    TOKENS = 16, /* at most: the rows of one tensor-core tile */
    ROWS = 8,    /* of weights a block owns: its columns */
    WARPS = 8,
    AHEAD = 8, /* 16-byte loads of weights a thread has under way */
    STEP = 32, /* columns of a row that four neighbouring threads read at a time */
};

typedef struct matvec_part {
    const void *w;
    const float *bias;
    int64_t stride;
    int rows, column, first_block;
    int f32;
} matvec_part;

typedef struct matvec_parts {
    int n, k;
    int tokens, accumulate;
    int64_t x_stride, y_stride;
    matvec_part part[HH_MAX_PARTS];
} matvec_parts;

/* Read once: they shall not push x out of the L1 cache. */
static __device__ __forceinline__ uint4 load_once(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

static __device__ __forceinline__ uint32_t pack(uint32_t a, uint32_t b) {
    __nv_bfloat162 v = __floats2bfloat162_rn(__uint_as_float(a), __uint_as_float(b));
    return *(uint32_t *)&v;
}

/* Eight weights as bf16. */
template <bool F32> static __device__ __forceinline__ uint4 load_weights(const char *row, int at) {
    if (!F32) return load_once(row + (int64_t)at * 2);
    uint4 a = load_once(row + (int64_t)at * 4), b = load_once(row + (int64_t)at * 4 + 16);
    return make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
}

static __device__ __forceinline__ void multiply(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* This warp's share of the sums over k: columns 32 warp + 256 i. A tensor core's k index is only a name: thread (g, t)
 * holds columns 8t .. 8t+7 of a step, of token g, of token g + 8 and of weight row g, and the first four of them
 * stand for one product's k, the last four for another's. */
template <bool F32>
static __device__ __forceinline__ void add_products(float *c, const char *w, const hh_bf16 *x0, const hh_bf16 *x1,
                                                    int k, bool has0, bool has1) {
    const uint4 zero = make_uint4(0, 0, 0, 0);
    /* All threads of a warp go through the same steps: products are theirs together. */
    for (int base = threadIdx.x / 32 * STEP; base < k; base += AHEAD * WARPS * STEP) {
        int at = base + threadIdx.x % 4 * 8;
        uint4 b[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            b[i] = at + i * WARPS * STEP < k ? load_weights<F32>(w, at + i * WARPS * STEP) : zero;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int j = at + i * WARPS * STEP;
            uint4 lo = has0 && j < k ? __ldg((const uint4 *)(x0 + j)) : zero;
            uint4 hi = has1 && j < k ? __ldg((const uint4 *)(x1 + j)) : zero;
            multiply(c, lo.x, hi.x, lo.y, hi.y, b[i].x, b[i].y);
            multiply(c, lo.z, hi.z, lo.w, hi.w, b[i].z, b[i].w);
        }
    }
}

/* A block owns 8 rows of weights for all tokens; its 8 warps share k and their sums are added in order. 4 KB of shared
 * memory. Bound by memory. */
template <typename Y>
static __global__ void __launch_bounds__(32 * WARPS) matvec_kernel(Y *y, const hh_bf16 *x, matvec_parts m) {
    __shared__ float sums[WARPS][TOKENS][ROWS];
    int p = 0;
    while (p + 1 < m.n && (int)blockIdx.x >= m.part[p + 1].first_block) p++;
    const matvec_part &part = m.part[p];
    int row = ((int)blockIdx.x - part.first_block) * ROWS, warp = threadIdx.x / 32;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int own = row + g < part.rows ? row + g : part.rows - 1; /* rows beyond the last are computed and not stored */
    bool has0 = g < m.tokens, has1 = g + 8 < m.tokens;
    const hh_bf16 *x0 = x + (has0 ? g : 0) * m.x_stride, *x1 = x + (has1 ? g + 8 : 0) * m.x_stride;
    float c[4] = {0, 0, 0, 0};
    const char *w = (const char *)part.w + own * part.stride * (part.f32 ? 4 : 2);
    if (part.f32)
        add_products<true>(c, w, x0, x1, m.k, has0, has1);
    else
        add_products<false>(c, w, x0, x1, m.k, has0, has1);
    sums[warp][g][2 * t] = c[0];
    sums[warp][g][2 * t + 1] = c[1];
    sums[warp][g + 8][2 * t] = c[2];
    sums[warp][g + 8][2 * t + 1] = c[3];
    __syncthreads();
    int token = threadIdx.x / ROWS, r = threadIdx.x % ROWS;
    if (token >= m.tokens || row + r >= part.rows) return;
    float s = part.bias ? part.bias[row + r] : 0;
    for (int i = 0; i < WARPS; i++) s += sums[i][token][r];
    Y *to = y + token * m.y_stride + part.column + row + r;
    hh_store(to, s + (m.accumulate ? hh_load(to) : 0));
}

static bool is_aligned(hh_tensor t) {
    return (uintptr_t)t.data % 16 == 0 && hh_dtype_bytes(t.dtype, t.stride) % 16 == 0;
}

/* Measured on an H200: up to 4M weights ours is up to 11 % faster, beyond that slower (docs/SPEED.md). */
static bool is_library_better(const hh_linear *w) {
    return w->n_parts == 1 && w->part[0].w.dtype == HH_DTYPE_BF16 && w->n * w->k > (int64_t)4 << 20;
}

bool hh_cuda_matvec(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate) {
    if (x.dtype != HH_DTYPE_BF16 || x.dim[0] > TOKENS || w->k % 8 || !is_aligned(x)) return false;
    if (is_library_better(w)) return false;
    matvec_parts m;
    memset(&m, 0, sizeof m);
    m.k = (int)w->k;
    m.tokens = (int)x.dim[0];
    m.accumulate = accumulate;
    m.x_stride = x.stride;
    m.y_stride = y.stride;
    int64_t column = 0, blocks = 0;
    for (int p = 0; p < w->n_parts; p++) {
        hh_tensor from = w->part[p].w;
        if (!from.dim[0]) continue;
        if (!is_aligned(from)) return false;
        matvec_part *to = &m.part[m.n++];
        to->w = from.data;
        to->bias = (const float *)w->part[p].bias.data;
        to->stride = from.stride;
        to->rows = (int)from.dim[0];
        to->column = (int)column;
        to->first_block = (int)blocks;
        to->f32 = from.dtype == HH_DTYPE_F32;
        column += from.dim[0];
        blocks += hh_ceil_div(from.dim[0], ROWS);
    }
    dim3 grid((unsigned)blocks), block(32 * WARPS);
    HH_CUDA_BY_TYPE(
        y.dtype, Y,
        hh_cuda_launch(be, "linear_fwd", matvec_kernel<Y>, grid, block, 0, (Y *)y.data, (const hh_bf16 *)x.data, m));
    return true;
}
