/* A candidate for ops/cuda/matvec.cu, timed and compared with it by bench_products: the linear map of a few tokens.
 *
 * A warp copies its own piece of the weights, 8 rows by a slice of the columns, into shared memory with the copy engine
 * as a whole, so that all of a block's bytes are under way at once, and multiplies it with tensor cores. In a recorded
 * sequence the weights are on their way before the kernel that makes x has ended. Included by one program. */
#include "ops/cuda/products.h"

#include <cstdint>

enum {
    TOKENS = 16, /* at most: the rows of one tensor-core tile */
    ROWS = 8,    /* of weights in a tile: its columns */
    WARPS = 8,
    STEP = 32,              /* columns that two products of tensor cores take */
    BLOCK_BYTES = 76 << 10, /* of shared memory, preferred: three blocks a multiprocessor */
};

typedef struct matvec_part {
    const void *w;
    const float *bias;
    int64_t stride;
    int rows, column, first_block;
    int f32;
} matvec_part;

/* A block owns `tiles` (a power of two up to 8) tiles of a part; 8 / tiles warps share the columns of each. */
typedef struct matvec_call {
    int n, k;
    int tokens, accumulate;
    int tiles, early;
    int64_t x_stride, y_stride;
    matvec_part part[HH_MAX_PARTS];
} matvec_call;

/* Columns of a slice, and bytes between its rows in shared memory: an odd number of 64, so that neighbouring rows lie in
 * different banks. */
static __host__ __device__ __forceinline__ int slice_of(int k, int slices) {
    return ((k + STEP - 1) / STEP + slices - 1) / slices * STEP;
}
static __host__ __device__ __forceinline__ int pitch_of(int slice, int f32) {
    return (slice * (f32 ? 4 : 2) + 127) / 128 * 128 + 64;
}

static __device__ __forceinline__ void multiply(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t pack(float a, float b) {
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(uint32_t *)&v;
}

/* Eight weights as bf16. */
static __device__ __forceinline__ uint4 load_weights(const char *row, int at, int f32) {
    if (!f32) return *(const uint4 *)(row + at * 2);
    float4 a = *(const float4 *)(row + at * 4), b = *(const float4 *)(row + at * 4 + 16);
    return make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
}

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* The warp's rows [row, row + 8) of columns [lo, lo + n), to `to`; `arrived` tells when they are there. */
static __device__ __forceinline__ void start_copy(char *to, int pitch, uint64_t *arrived, const matvec_part &part,
                                                  int row, int lo, int n) {
    int lane = threadIdx.x % 32, size = part.f32 ? 4 : 2;
    int rows = part.rows - row < ROWS ? part.rows - row : ROWS;
    if (lane == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :
                     : "r"(shared_address(arrived)), "r"(rows * n * size)
                     : "memory");
    __syncwarp();
    if (lane < rows)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :
                     : "r"(shared_address(to + lane * pitch)),
                       "l"((const char *)part.w + ((row + lane) * part.stride + lo) * size), "r"(n * size),
                       "r"(shared_address(arrived))
                     : "memory");
}

static __device__ __forceinline__ void wait_for_copy(uint64_t *arrived) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(arrived))
                     : "memory");
}

/* The sums over a slice. A tensor core's k index is only a name: thread (g, t) holds columns 8t .. 8t+7 of a step, of
 * tokens g and g + 8 and of weight row g; the first four of them stand for one product's k, the last four for another's.
 * x is on its way before the weights are waited for. */
template <bool MANY>
static __device__ __forceinline__ void add_products(float *c, const char *w, int f32, const hh_bf16 *x0,
                                                    const hh_bf16 *x1, int n, bool has0, bool has1, uint64_t *arrived) {
    const int steps = MANY ? 4 : 8;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (int at = 0; at < n; at += steps * STEP) {
        uint4 lo[steps], hi[steps];
        int mine = at + threadIdx.x % 4 * 8;
#pragma unroll
        for (int i = 0; i < steps; i++) {
            lo[i] = has0 && mine + i * STEP < n ? *(const uint4 *)(x0 + mine + i * STEP) : zero;
            hi[i] = MANY && has1 && mine + i * STEP < n ? *(const uint4 *)(x1 + mine + i * STEP) : zero;
        }
        if (!at) wait_for_copy(arrived);
#pragma unroll
        for (int i = 0; i < steps; i++) {
            uint4 b = mine + i * STEP < n ? load_weights(w, mine + i * STEP, f32) : zero;
            multiply(c, lo[i].x, hi[i].x, lo[i].y, hi[i].y, b.x, b.y);
            multiply(c, lo[i].z, hi[i].z, lo[i].w, hi[i].w, b.z, b.w);
        }
    }
}
#endif

/* Shared memory: 8 rows by a slice for each warp (8 x 8 x pitch bytes), and 4 KB of partial sums, which are added in
 * order. Bound by memory. */
template <typename Y, bool MANY>
static __global__ void __launch_bounds__(32 * WARPS, 3) matvec_early_kernel(Y *y, const hh_bf16 *x, matvec_call m) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char pieces[];
    __shared__ float sums[WARPS][TOKENS][ROWS];
    __shared__ uint64_t arrived[WARPS];
    asm volatile("griddepcontrol.launch_dependents;");
    int p = 0;
    while (p + 1 < m.n && (int)blockIdx.x >= m.part[p + 1].first_block) p++;
    const matvec_part &part = m.part[p];
    int warp = threadIdx.x / 32, slices = WARPS / m.tiles, slice = slice_of(m.k, slices);
    int first = ((int)blockIdx.x - part.first_block) * m.tiles * ROWS;
    int row = first + warp / slices * ROWS, lo = warp % slices * slice, n = m.k - lo < slice ? m.k - lo : slice;
    int pitch = pitch_of(slice, part.f32), g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    char *piece = pieces + warp * ROWS * pitch;
    bool busy = row < part.rows && n > 0;
    if (threadIdx.x % 32 == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(shared_address(&arrived[warp])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    }
    __syncwarp();
    if (busy && m.early) start_copy(piece, pitch, &arrived[warp], part, row, lo, n);
    asm volatile("griddepcontrol.wait;" : : : "memory");
    if (busy && !m.early) start_copy(piece, pitch, &arrived[warp], part, row, lo, n);
    bool has0 = g < m.tokens, has1 = g + 8 < m.tokens;
    const hh_bf16 *x0 = x + (has0 ? g : 0) * m.x_stride + lo, *x1 = x + (has1 ? g + 8 : 0) * m.x_stride + lo;
    float c[4] = {0, 0, 0, 0};
    if (busy) add_products<MANY>(c, piece + g * pitch, part.f32, x0, x1, n, has0, has1, &arrived[warp]);
    sums[warp][g][2 * t] = c[0];
    sums[warp][g][2 * t + 1] = c[1];
    sums[warp][g + 8][2 * t] = c[2];
    sums[warp][g + 8][2 * t + 1] = c[3];
    __syncthreads();
    int rows = m.tiles * ROWS;
    for (int i = threadIdx.x; i < rows * m.tokens; i += 32 * WARPS) {
        int token = i / rows, r = i % rows, from = r / ROWS * slices;
        if (first + r >= part.rows) continue;
        float s = part.bias ? part.bias[first + r] : 0;
        for (int j = 0; j < slices; j++) s += sums[from + j][token][r % ROWS];
        Y *to = y + token * m.y_stride + part.column + first + r;
        hh_store(to, s + (m.accumulate ? hh_load(to) : 0));
    }
#endif
}

static bool is_aligned(hh_tensor t) {
    return (uintptr_t)t.data % 16 == 0 && hh_dtype_bytes(t.dtype, t.stride) % 16 == 0;
}

static size_t shared_bytes(const matvec_call *m, int tiles, int f32) {
    return (size_t)WARPS * ROWS * pitch_of(slice_of(m->k, WARPS / tiles), f32);
}

/* The parts, and how a block's tiles are chosen: enough blocks for all multiprocessors first, then large ones. 0 blocks
 * when weights are not aligned or a row is too long. */
static int64_t plan_blocks(const hh_cuda *c, const hh_linear *w, matvec_call *m) {
    int64_t column = 0, tiles = 0, blocks = 0;
    int f32 = 0;
    for (int p = 0; p < w->n_parts; p++) {
        hh_tensor from = w->part[p].w;
        if (!from.dim[0]) continue;
        if (!is_aligned(from)) return 0;
        matvec_part *to = &m->part[m->n++];
        to->w = from.data;
        to->bias = (const float *)w->part[p].bias.data;
        to->stride = from.stride;
        to->rows = (int)from.dim[0];
        to->column = (int)column;
        to->f32 = from.dtype == HH_DTYPE_F32;
        f32 |= to->f32;
        column += from.dim[0];
        tiles += hh_ceil_div(from.dim[0], ROWS);
    }
    m->tiles = 1;
    while (m->tiles < WARPS && shared_bytes(m, 2 * m->tiles, f32) <= BLOCK_BYTES &&
           2 * tiles / (2 * m->tiles) >= 3 * c->n_sms)
        m->tiles *= 2;
    if (shared_bytes(m, m->tiles, f32) + (8 << 10) > c->shared_bytes) return 0;
    for (int p = 0; p < m->n; p++) {
        m->part[p].first_block = (int)blocks;
        blocks += hh_ceil_div(m->part[p].rows, m->tiles * ROWS);
    }
    m->early = c->mode == HH_CUDA_RECORD || c->mode == HH_CUDA_REPLAY; /* weights do not change in a recording */
    return blocks;
}

template <typename Y, bool MANY>
static void launch(hh_backend *be, Y *y, const hh_bf16 *x, const matvec_call *m, int64_t blocks) {
    hh_cuda *c = hh_cuda_of(be);
    struct key {
        const void *kernel, *y, *x;
        matvec_call m;
    } k;
    memset(&k, 0, sizeof k);
    k.kernel = (const void *)matvec_early_kernel<Y, MANY>, k.y = y, k.x = x, k.m = *m;
    if (!hh_cuda_begin(be, "linear_fwd", &k, sizeof k)) return;
    int f32 = 0;
    for (int p = 0; p < m->n; p++) f32 |= m->part[p].f32;
    cudaLaunchAttribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(32 * WARPS);
    config.dynamicSmemBytes = shared_bytes(m, m->tiles, f32);
    config.stream = c->stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaError_t e = cudaFuncSetAttribute(matvec_early_kernel<Y, MANY>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)config.dynamicSmemBytes);
    if (e == cudaSuccess) e = cudaLaunchKernelEx(&config, matvec_early_kernel<Y, MANY>, y, x, *m);
    hh_cuda_end(be, e);
}

static bool run_matvec_early(hh_backend *be, hh_tensor y, hh_tensor x, const hh_linear *w, bool accumulate) {
    if (hh_cuda_of(be)->arch < 90 || x.dtype != HH_DTYPE_BF16 || x.dim[0] > TOKENS || w->k % 8 || !is_aligned(x))
        return false;
    matvec_call m;
    memset(&m, 0, sizeof m);
    m.k = (int)w->k;
    m.tokens = (int)x.dim[0];
    m.accumulate = accumulate;
    m.x_stride = x.stride;
    m.y_stride = y.stride;
    int64_t blocks = plan_blocks(hh_cuda_of(be), w, &m);
    if (!blocks) return false;
    HH_CUDA_BY_TYPE(y.dtype, Y, {
        if (m.tokens > 8)
            launch<Y, true>(be, (Y *)y.data, (const hh_bf16 *)x.data, &m, blocks);
        else
            launch<Y, false>(be, (Y *)y.data, (const hh_bf16 *)x.data, &m, blocks);
    });
    return true;
}
