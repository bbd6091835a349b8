/* Decode: one query a span against a long cache, where reading the cache is all that costs. The context is split so
 * that every SM has its share; a block serves all query heads of one KV head. A warp takes 16 keys at a time straight
 * from memory into the operands of two products (heads x keys, heads x columns): the order of a product's depth is free, so
 * every lane reads 16 bytes in a row, of K along the head's width and of V along its columns. A second kernel merges
 * the splits in their order; a context that is not split needs none.
 *
 * The number of splits follows from the numbers of spans and groups and from a power-of-two bound of the longest
 * context: a recorded graph stays valid while the context grows within it. */
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_tile.h"

#include <cstdint>

#define WARPS 8

/* How a cache is read: 16 bytes at a time; blocks of Q8_0 by way of shared memory (their rows begin at multiples of 4
 * bytes when the width is one of 64); anything else as it comes. */
typedef enum kind { BF16, Q8, OTHER } kind;

static __device__ __forceinline__ unsigned from_half2(unsigned x) {
    const float2 f = __half22float2(*(const __half2 *)&x);
    return hh_pack(f.x, f.y);
}

/* Elements [i, i + 2 N) of a block of Q8_0 (34 bytes, on an even address). A byte becomes a float as the low bits of
 * 2^23 + 128. */
template <int N> static __device__ __forceinline__ void unpack(unsigned (&r)[N], const char *block, int i) {
    const float d = __half2float(*(const __half *)block), base = 8388736;
    const unsigned short *q = (const unsigned short *)(block + 2 + i);
#pragma unroll
    for (int k = 0; k < N; k++) {
        const unsigned two = q[k] ^ 0x8080u;
        const float x = __uint_as_float(__byte_perm(two, 0x4b000000u, 0x7540)) - base;
        const float y = __uint_as_float(__byte_perm(two, 0x4b000000u, 0x7541)) - base;
        r[k] = hh_pack(d * x, d * y);
    }
}

/* Elements [i, i + 2 N) of a cache as N pairs of bf16; N is 2 or 4, i a multiple of 2 N. */
template <int N, kind KIND>
static __device__ __forceinline__ void load_pairs(unsigned (&r)[N], const char *p, int dtype, int64_t i) {
    if (KIND == BF16) {
        if (N == 4)
            *(uint4 *)r = __ldcs((const uint4 *)(p + 2 * i));
        else
            *(uint2 *)r = __ldcs((const uint2 *)(p + 2 * i));
        return;
    }
    switch (dtype) {
    case HH_DTYPE_F32:
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float2 f = __ldcs((const float2 *)(p + 4 * i) + k);
            r[k] = hh_pack(f.x, f.y);
        }
        break;
    case HH_DTYPE_BF16:
#pragma unroll
        for (int k = 0; k < N; k++) r[k] = ((const unsigned *)(p + 2 * i))[k];
        break;
    case HH_DTYPE_F16:
#pragma unroll
        for (int k = 0; k < N; k++) r[k] = from_half2(((const unsigned *)(p + 2 * i))[k]);
        break;
    default:
        unpack(r, p + i / 32 * 34, (int)(i % 32));
    }
}

/* The rows that a warp reads next, as they lie in the cache. */
template <int D> struct raw_rows {
    static constexpr int PIECE = D / 16, PIECES = 17,
                         STRIDE = D == 64 ? 80 : D / 32 * 34 + PIECE; /* bytes a copy; copies a row */
    char row[2][32][STRIDE];                                          /* two stages of 16 keys and 16 values */
};

template <int D>
static __device__ __forceinline__ void bring_rows(char (*to)[raw_rows<D>::STRIDE], const hh_attention_span &s, int kv,
                                                  int64_t key, int64_t end) {
    typedef raw_rows<D> raw;
#pragma unroll
    for (int i = 0; i < raw::PIECES; i++) {
        const int at = threadIdx.x % 32 + 32 * i, r = at / raw::PIECES, piece = at % raw::PIECES;
        const int64_t j = key + r % 16 < end ? key + r % 16 : end - 1;
        const char *from = (r < 16 ? s.k : s.v) + (j * (r < 16 ? s.k_stride : s.v_stride) + (int64_t)kv * D) / 32 * 34;
        const unsigned dst = (unsigned)__cvta_generic_to_shared(&to[r][piece * raw::PIECE]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(from + piece * raw::PIECE),
                     "n"(raw::PIECE)
                     : "memory");
    }
    hh_copy_commit();
}

/* Eight elements of a query, on any address; zeros for NULL. */
static __device__ __forceinline__ void load_query(unsigned *r, const hh_bf16 *p) {
    if (p && (uintptr_t)p % 16 == 0) {
        *(uint4 *)r = *(const uint4 *)p;
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) r[k] = p ? hh_pack(hh_load(p + 2 * k), hh_load(p + 2 * k + 1)) : 0;
}

/* What the warps of a block found: top and sum of each row, and its columns. */
template <int D, int R> struct found {
    float top[WARPS][R], sum[WARPS][R];
    float o[WARPS][R][D];
};

template <int D> struct shape {
    static constexpr int VEC = D % 64 ? 4 : 8;    /* columns of V that a lane reads in a row */
    static constexpr int WIDE = D / (8 * VEC);    /* such reads a row */
    static constexpr int BLOCKS = D > 64 ? 1 : 2; /* on an SM */
};

/* Column d of the head at `head` of the list. */
template <int D>
static __device__ __forceinline__ void store_result(const hh_attention_args &a, const hh_attention_span &s, int head,
                                                    int d, float x, float high, float all) {
    const hh_attention_head h = a.head[head];
    hh_store((hh_bf16 *)a.o + s.lo * a.o_stride + (int64_t)h.o * D + d, x);
    if (a.lse && !d) a.lse[s.lo * a.lse_stride + h.o] = HH_LN2 * high + logf(all);
}

template <int D, int R, kind KIND>
static __global__ void __launch_bounds__(32 * WARPS, shape<D>::BLOCKS)
    decode_split(const hh_attention_args a, float *part_o, float2 *part, int n_splits) {
    constexpr int VEC = shape<D>::VEC, WIDE = shape<D>::WIDE, H = R / 8;
    extern __shared__ __align__(16) unsigned char shared[];
    found<D, R> *f = (found<D, R> *)shared;
    const hh_attention_span s = a.span[blockIdx.z];
    const hh_attention_group group = a.group[blockIdx.y];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, m = lane % 4;
    const int64_t n_keys = s.pos + 1, share = (n_keys + 16 * n_splits - 1) / (16 * n_splits) * 16;
    const int64_t begin = share * blockIdx.x, end = begin + share < n_keys ? begin + share : n_keys;
    const int64_t column = (int64_t)group.kv * D;
    const float c = HH_LOG2E * hh_attention_scale_at(a, s.pos);

    unsigned q[H][D / 32][4];
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const int row = g + 8 * h;
            load_query(q[h][i], row < group.n ? (const hh_bf16 *)a.q + s.lo * a.q_stride +
                                                    (int64_t)a.head[group.first + row].q * D + 32 * i + 8 * m
                                              : NULL);
        }

    float o[WIDE * VEC][2 * H] = {}, top[H], sum[H];
#pragma unroll
    for (int h = 0; h < H; h++) top[h] = -INFINITY, sum[h] = 0;
    unsigned k[2][D / 32][4], v[4][WIDE][VEC / 2];
    int64_t key = begin + 16 * warp;
    raw_rows<D> *raw = (raw_rows<D> *)(shared + sizeof *f) + warp;
    int stage = 0;
    auto load_keys = [&](int64_t at) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int64_t row = at + 8 * n + g < end ? at + 8 * n + g : end - 1;
#pragma unroll
            for (int i = 0; i < D / 32; i++)
                if (KIND == Q8)
                    unpack(k[n][i], &raw->row[stage][8 * n + g][34 * i], 8 * m);
                else
                    load_pairs<4, KIND>(k[n][i], s.k, a.kv_dtype, row * s.k_stride + column + 32 * i + 8 * m);
        }
    };
    if (key < end) {
        if constexpr (KIND == Q8)
            bring_rows<D>(raw->row[0], s, group.kv, key, end);
        else
            load_keys(key);
    }
    for (; key < end; key += 16 * WARPS) {
        if constexpr (KIND == Q8) {
            if (key + 16 * WARPS < end)
                bring_rows<D>(raw->row[stage ^ 1], s, group.kv, key + 16 * WARPS, end);
            else
                hh_copy_commit();
            hh_copy_wait<1>();
            __syncwarp();
            load_keys(key);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int64_t at = key + 2 * m + (n & 1) + 8 * (n >> 1), row = at < end ? at : end - 1;
#pragma unroll
            for (int w = 0; w < WIDE; w++)
                if (KIND == Q8)
                    unpack(v[n][w], &raw->row[stage][16 + 2 * m + (n & 1) + 8 * (n >> 1)][(8 * w + g) * VEC / 32 * 34],
                           (8 * w + g) * VEC % 32);
                else
                    load_pairs<VEC / 2, KIND>(v[n][w], s.v, a.kv_dtype, row * s.v_stride + column + (8 * w + g) * VEC);
        }
        if (KIND == Q8) { /* the stage is in registers */
            __syncwarp();
            stage ^= 1;
        }
        float z[2][4] = {};
#pragma unroll
        for (int i = 0; i < D / 32; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned qa[4] = {q[0][i][2 * half], H > 1 ? q[H - 1][i][2 * half] : 0, q[0][i][2 * half + 1],
                                        H > 1 ? q[H - 1][i][2 * half + 1] : 0};
#pragma unroll
                for (int n = 0; n < 2; n++) hh_mma(z[n], qa, k[n][i] + 2 * half);
            }
        if (KIND != Q8 && key + 16 * WARPS < end) load_keys(key + 16 * WARPS);

        unsigned p[4] = {0, 0, 0, 0};
#pragma unroll
        for (int h = 0; h < H; h++) {
            float t = -INFINITY;
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++) {
                    z[n][e] = key + 8 * n + 2 * m + (e & 1) < end ? z[n][e] * c : -INFINITY;
                    t = fmaxf(t, z[n][e]);
                }
            t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
            t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
            if (__any_sync(0xffffffffu, t > top[h])) {
                const float higher = fmaxf(t, top[h]), shrink = hh_exp2(top[h] - higher);
                top[h] = higher;
                sum[h] *= shrink;
#pragma unroll
                for (int n = 0; n < WIDE * VEC; n++) o[n][2 * h] *= shrink, o[n][2 * h + 1] *= shrink;
            }
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float x = hh_exp2(z[n][2 * h] - top[h]), y = hh_exp2(z[n][2 * h + 1] - top[h]);
                sum[h] += x + y;
                p[2 * n + h] = hh_pack(x, y);
            }
        }
#pragma unroll
        for (int w = 0; w < WIDE; w++)
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const unsigned which = j & 1 ? 0x7632 : 0x5410;
                const unsigned b[2] = {__byte_perm(v[0][w][j / 2], v[1][w][j / 2], which),
                                       __byte_perm(v[2][w][j / 2], v[3][w][j / 2], which)};
                float *to = o[w * VEC + j],
                      full[4] = {to[0], to[1], H > 1 ? to[2 * H - 2] : 0, H > 1 ? to[2 * H - 1] : 0};
                hh_mma(full, p, b);
                to[0] = full[0], to[1] = full[1];
                if (H > 1) to[2 * H - 2] = full[2], to[2 * H - 1] = full[3];
            }
    }

#pragma unroll
    for (int h = 0; h < H; h++) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        if (m == 0) f->top[warp][g + 8 * h] = top[h], f->sum[warp][g + 8 * h] = sum[h];
#pragma unroll
        for (int w = 0; w < WIDE; w++)
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int j = 0; j < VEC; j++)
                    f->o[warp][g + 8 * h][(8 * w + 2 * m + e) * VEC + j] = o[w * VEC + j][2 * h + e];
    }
    __syncthreads();
    const int64_t item = ((int64_t)blockIdx.z * a.n_heads + group.first) * n_splits; /* of the group's first head */
    for (int at = threadIdx.x; at < group.n * D; at += 32 * WARPS) {
        const int row = at / D, d = at % D;
        float high = -INFINITY, all = 0, column_sum = 0;
        for (int w = 0; w < WARPS; w++) high = fmaxf(high, f->top[w][row]);
        for (int w = 0; w < WARPS; w++) {
            if (f->sum[w][row] == 0) continue;
            const float weight = hh_exp2(f->top[w][row] - high);
            all += weight * f->sum[w][row];
            column_sum += weight * f->o[w][row][d];
        }
        if (n_splits == 1) {
            store_result<D>(a, s, group.first + row, d, column_sum / all, high, all);
            continue;
        }
        const int64_t part_at = item + (int64_t)row * n_splits + blockIdx.x;
        part_o[part_at * D + d] = column_sum;
        if (!d) part[part_at] = make_float2(high, all);
    }
}

/* A block a span and head: its warps take the splits in turn, then one thread a column adds what they have. */
static __global__ void __launch_bounds__(512)
    decode_merge(const hh_attention_args a, const float *part_o, const float2 *part, int n_splits) {
    __shared__ float sums[16][HH_MAX_HEAD_DIM / 4];
    const hh_attention_span s = a.span[blockIdx.y];
    const hh_attention_head h = a.head[blockIdx.x];
    const int D = a.head_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t item = ((int64_t)blockIdx.y * a.n_heads + blockIdx.x) * n_splits;
    float high = -INFINITY, all = 0, o[4] = {0};
    for (int i = lane; i < n_splits; i += 32) high = fmaxf(high, part[item + i].x);
    high = hh_warp_max(high);
    for (int i = lane; i < n_splits; i += 32)
        if (part[item + i].y > 0) all += hh_exp2(part[item + i].x - high) * part[item + i].y;
    all = hh_warp_sum(all);
#pragma unroll 4
    for (int i = warp; i < n_splits; i += 16) {
        const float2 p = part[item + i];
        const float weight = p.y > 0 ? hh_exp2(p.x - high) : 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (lane + 32 * k < D) o[k] += weight * part_o[(item + i) * D + lane + 32 * k];
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (lane + 32 * k < D) sums[warp][lane + 32 * k] = o[k];
    __syncthreads();
    if (threadIdx.x < D) {
        float x = 0;
        for (int w = 0; w < 16; w++) x += sums[w][threadIdx.x];
        hh_store((hh_bf16 *)a.o + s.lo * a.o_stride + (int64_t)h.o * D + threadIdx.x, x / all);
    }
    if (a.lse && !threadIdx.x) a.lse[s.lo * a.lse_stride + h.o] = HH_LN2 * high + logf(all);
}

/* So many that the card's last wave of blocks is nearly full, while a split keeps work for all its warps. */
static int choose_splits(int64_t n_blocks, int64_t n_at_once, int64_t longest) {
    int64_t bound = 1, best = 1;
    while (bound < longest) bound *= 2;
    const int64_t most = bound / (2 * 16 * WARPS) > 1 ? bound / (2 * 16 * WARPS) : 1;
    double best_share = 0;
    for (int64_t n = 1; n <= most && n <= 1024; n++) {
        const double share = (double)(n_blocks * n) / (double)(hh_ceil_div(n_blocks * n, n_at_once) * n_at_once);
        if (share > best_share + .02) best = n, best_share = share;
        if (n_blocks * n >= 4 * n_at_once) break;
    }
    return (int)best;
}

template <int D, int R> static void launch_decode(hh_backend *be, hh_attention_args *a, int64_t longest) {
    const int n_splits =
        choose_splits((int64_t)a->n_spans * a->n_groups, (int64_t)hh_cuda_of(be)->n_sms * shape<D>::BLOCKS, longest);
    const size_t n = (size_t)a->n_spans * (size_t)a->n_heads * (size_t)n_splits;
    float *part_o = (float *)hh_cuda_scratch(be, n * D * sizeof *part_o);
    float2 *part = (float2 *)hh_cuda_scratch(be, n * sizeof *part);
    const dim3 grid((unsigned)n_splits, (unsigned)a->n_groups, (unsigned)a->n_spans);
    const size_t shared = sizeof(found<D, R>), with_rows = shared + sizeof(raw_rows<D>) * WARPS;
    const bool q8 = a->kv_dtype == HH_DTYPE_Q8_0 && D % 64 == 0 && with_rows <= hh_cuda_of(be)->shared_bytes;
    if (a->kv_dtype == HH_DTYPE_BF16)
        hh_cuda_launch(be, "attention_fwd", decode_split<D, R, BF16>, grid, 32 * WARPS, shared, *a, part_o, part,
                       n_splits);
    else if (!q8)
        hh_cuda_launch(be, "attention_fwd", decode_split<D, R, OTHER>, grid, 32 * WARPS, shared, *a, part_o, part,
                       n_splits);
    else if constexpr (D % 64 == 0)
        hh_cuda_launch(be, "attention_fwd", decode_split<D, R, Q8>, grid, 32 * WARPS, with_rows, *a, part_o, part,
                       n_splits);
    if (n_splits > 1)
        hh_cuda_launch(be, "attention_fwd", decode_merge, dim3((unsigned)a->n_heads, (unsigned)a->n_spans), 512, 0, *a,
                       part_o, part, n_splits);
}

template <int D> static void launch_width(hh_backend *be, hh_attention_args *a, int64_t longest, int most_heads) {
    if (most_heads <= 8)
        launch_decode<D, 8>(be, a, longest);
    else
        launch_decode<D, 16>(be, a, longest);
}

void hh_attention_decode(hh_backend *be, hh_attention_args *a, hh_attention_span *span,
                         const hh_attention_group *group) {
    int64_t longest = 1;
    int most_heads = 0;
    for (int i = 0; i < a->n_spans; i++) longest = span[i].pos + 1 > longest ? span[i].pos + 1 : longest;
    for (int i = 0; i < a->n_groups; i++) most_heads = group[i].n > most_heads ? group[i].n : most_heads;
    HH_ASSERT(most_heads <= 16 && a->n_spans <= 65535);
    a->span = hh_cuda_list(be, span, a->n_spans);
    a->group = hh_cuda_list(be, group, a->n_groups);
    switch (a->head_dim) {
    case 32:
        return launch_width<32>(be, a, longest, most_heads);
    case 64:
        return launch_width<64>(be, a, longest, most_heads);
    case 96:
        return launch_width<96>(be, a, longest, most_heads);
    default:
        return launch_width<128>(be, a, longest, most_heads);
    }
}
