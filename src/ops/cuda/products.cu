/* Products by cuBLASLt: row-major to column-major, plans by shape, recording; and a plain kernel for shapes that no plan
 * serves. */
#include "ops/cuda/products.h"

#include <cstdint>

/* What a plan depends on, and with the addresses what a call is. In cuBLASLt's words, column-major: D [rows,cols] =
 * op(A) op(B); so A is the right factor of the row-major product and B the left one. */
typedef struct plan_key {
    int64_t rows, cols, k;
    int64_t lda, ldb, ldd;
    uint32_t f32, d_f32, ta, tb, bias, add;
    uint32_t align[4]; /* of A, B, D and the bias, up to 256 bytes */
} plan_key;

typedef struct plan {
    bool used, found;
    plan_key key;
    cublasLtMatmulAlgo_t algo;
} plan;

enum { PLANS = 4096, PROBES = 8 };

void hh_cuda_products_init(hh_cuda *c) {
    c->products = hh_alloc_unguarded(PLANS * sizeof(plan));
}

void hh_cuda_products_release(hh_cuda *c) {
    hh_free(c->products);
    c->products = NULL;
}

static uint32_t alignment_of(const void *p) {
    uintptr_t a = (uintptr_t)p;
    return a % 256 ? (uint32_t)(a & -a) : 256;
}

/* The descriptors of one call; all live on the stack. */
typedef struct descriptors {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, d;
} descriptors;

static void describe(descriptors *s, const plan_key *k, const void *bias) {
    cudaDataType_t in = k->f32 ? CUDA_R_32F : CUDA_R_16BF, out = k->d_f32 ? CUDA_R_32F : CUDA_R_16BF;
    cublasOperation_t ta = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDescInit(&s->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&s->product, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    cublasLtMatmulDescSetAttribute(&s->product, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    if (k->bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        cublasLtMatmulDescSetAttribute(&s->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        cublasLtMatmulDescSetAttribute(&s->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    }
    cublasLtMatrixLayoutInit(&s->a, in, (uint64_t)(k->ta ? k->k : k->rows), (uint64_t)(k->ta ? k->rows : k->k), k->lda);
    cublasLtMatrixLayoutInit(&s->b, in, (uint64_t)(k->tb ? k->cols : k->k), (uint64_t)(k->tb ? k->k : k->cols), k->ldb);
    cublasLtMatrixLayoutInit(&s->d, out, (uint64_t)k->rows, (uint64_t)k->cols, k->ldd);
}

/* The library's first choice. Partial sums of a split k may only be added in float32 and in order. */
static bool choose_algorithm(hh_cuda *c, descriptors *s, const plan_key *k, cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulPreferenceOpaque_t p;
    size_t workspace = HH_CUDA_WORKSPACE_BYTES;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreferenceInit(&p);
    cublasLtMatmulPreferenceSetAttribute(&p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    cublasLtMatmulPreferenceSetAttribute(&p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
    cublasLtMatmulPreferenceSetAttribute(&p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->align[0], 4);
    cublasLtMatmulPreferenceSetAttribute(&p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->align[1], 4);
    cublasLtMatmulPreferenceSetAttribute(&p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->align[2], 4);
    cublasLtMatmulPreferenceSetAttribute(&p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->align[2], 4);
    cublasLtMatmulHeuristicResult_t r;
    int n = 0;
    memset(&r, 0, sizeof r);
    cublasStatus_t e = cublasLtMatmulAlgoGetHeuristic(c->lt, &s->product, &s->a, &s->b, &s->d, &s->d, &p, 1, &r, &n);
    if (e != CUBLAS_STATUS_SUCCESS || !n || r.state != CUBLAS_STATUS_SUCCESS) return false;
    *algo = r.algo;
    return true;
}

static const plan *plan_of(hh_cuda *c, descriptors *s, const plan_key *key) {
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ ((const unsigned char *)key)[i]) * 1099511628211ull;
    plan *table = (plan *)c->products, *p = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        p = &table[(h + i) % PLANS];
        if (!p->used) break;
        if (!memcmp(&p->key, key, sizeof *key)) return p;
    }
    p->used = true; /* a full neighbourhood loses its last */
    p->key = *key;
    p->found = choose_algorithm(c, s, key, &p->algo);
    return p;
}

enum { SIDE = 16 };

/* One block owns SIDE x SIDE numbers of D; any strides, any alignment. */
template <typename A, typename D>
static __global__ void product_plain_kernel(D *d, const A *left, const A *right, const D *bias, int64_t m, int64_t n,
                                            int64_t k, int64_t ldd, int64_t left_row, int64_t left_k, int64_t right_k,
                                            int64_t right_col, bool add) {
    __shared__ float l[SIDE][SIDE + 1], r[SIDE][SIDE + 1];
    int64_t i = (int64_t)blockIdx.x * SIDE + threadIdx.y, j = (int64_t)blockIdx.y * SIDE + threadIdx.x;
    float s = 0;
    for (int64_t at = 0; at < k; at += SIDE) {
        int64_t lk = at + threadIdx.x, rk = at + threadIdx.y;
        l[threadIdx.y][threadIdx.x] = i < m && lk < k ? hh_load(left + i * left_row + lk * left_k) : 0;
        r[threadIdx.y][threadIdx.x] = j < n && rk < k ? hh_load(right + rk * right_k + j * right_col) : 0;
        __syncthreads();
        for (int q = 0; q < SIDE; q++) s += l[threadIdx.y][q] * r[q][threadIdx.x];
        __syncthreads();
    }
    if (i >= m || j >= n) return;
    if (bias) s += hh_load(bias + j);
    hh_store(d + i * ldd + j, s + (add ? hh_load(d + i * ldd + j) : 0));
}

template <typename A, typename D>
static void launch_plain(hh_backend *be, const char *op, void *d, const void *left, const void *right, const void *bias,
                         const plan_key *k) {
    dim3 grid((unsigned)hh_ceil_div(k->cols, SIDE), (unsigned)hh_ceil_div(k->rows, SIDE));
    hh_cuda_launch(be, op, product_plain_kernel<A, D>, grid, dim3(SIDE, SIDE), 0, (D *)d, (const A *)left,
                   (const A *)right, (const D *)bias, k->cols, k->rows, k->k, k->ldd, k->tb ? (int64_t)1 : k->ldb,
                   k->tb ? k->ldb : (int64_t)1, k->ta ? (int64_t)1 : k->lda, k->ta ? k->lda : (int64_t)1, (bool)k->add);
}

static void run_plain(hh_backend *be, const char *op, void *d, const void *left, const void *right, const void *bias,
                      const plan_key *k) {
    if (k->f32)
        launch_plain<float, float>(be, op, d, left, right, bias, k);
    else if (k->d_f32)
        launch_plain<hh_bf16, float>(be, op, d, left, right, bias, k);
    else
        launch_plain<hh_bf16, hh_bf16>(be, op, d, left, right, bias, k);
}

static void run_plan(hh_backend *be, const char *op, descriptors *s, const plan *p, void *d, const void *left,
                     const void *right, const void *bias) {
    hh_cuda *c = hh_cuda_of(be);
    struct call {
        plan_key key;
        const void *d, *left, *right, *bias;
    } call;
    memset(&call, 0, sizeof call);
    call.key = p->key;
    call.d = d, call.left = left, call.right = right, call.bias = bias;
    const plan_key *k = &p->key;
    const size_t size = k->d_f32 ? sizeof(float) : sizeof(hh_bf16);
    if (!k->add) hh_cuda_poison(be, d, (size_t)k->ldd * size, (size_t)k->rows * size, (size_t)k->cols);
    if (!hh_cuda_begin(be, op, &call, sizeof call)) return;
    float one = 1, beta = p->key.add ? 1.0f : 0.0f;
    cublasStatus_t e = cublasLtMatmul(c->lt, &s->product, &one, right, &s->a, left, &s->b, &beta, d, &s->d, d, &s->d,
                                      &p->algo, c->workspace, HH_CUDA_WORKSPACE_BYTES, c->stream);
    if (e != CUBLAS_STATUS_SUCCESS) hh_cuda_fault(be, op, cublasLtGetStatusString(e));
    hh_cuda_end(be, cudaGetLastError());
}

bool hh_cuda_plain_products;

void hh_cuda_product(hh_backend *be, const char *op, hh_tensor d, hh_tensor a, bool a_turned, hh_tensor b,
                     bool b_turned, const void *bias, bool add) {
    int64_t a_cols = hh_tensor_row_count(a), b_cols = hh_tensor_row_count(b);
    int64_t m = a_turned ? a_cols : a.dim[0], n = b_turned ? b.dim[0] : b_cols, k = a_turned ? a.dim[0] : a_cols;
    HH_ASSERT(!hh_cuda_of(be)->branch); /* there is one workspace */
    HH_ASSERT(a.dtype == b.dtype && (a.dtype == HH_DTYPE_BF16 || a.dtype == HH_DTYPE_F32));
    HH_ASSERT(d.dtype == a.dtype || d.dtype == HH_DTYPE_F32);
    HH_ASSERT((b_turned ? b_cols : b.dim[0]) == k && d.dim[0] == m && hh_tensor_row_count(d) == n);
    if (!m || !n) return;
    plan_key key;
    memset(&key, 0, sizeof key);
    key.rows = n, key.cols = m, key.k = k;
    /* One row's stride may be anything; the library wants it to cover the row. */
    key.lda = b.dim[0] > 1 ? b.stride : b_cols;
    key.ldb = a.dim[0] > 1 ? a.stride : a_cols;
    key.ldd = m > 1 ? d.stride : n;
    key.f32 = a.dtype == HH_DTYPE_F32, key.d_f32 = d.dtype == HH_DTYPE_F32;
    key.ta = b_turned, key.tb = a_turned;
    key.bias = bias != NULL, key.add = add;
    key.align[0] = alignment_of(b.data), key.align[1] = alignment_of(a.data), key.align[2] = alignment_of(d.data);
    key.align[3] = alignment_of(bias);
    descriptors s;
    describe(&s, &key, bias);
    const plan *p = plan_of(hh_cuda_of(be), &s, &key);
    if (k > 0 && p->found && !hh_cuda_plain_products)
        run_plan(be, op, &s, p, d.data, a.data, b.data, bias);
    else
        run_plain(be, op, d.data, a.data, b.data, bias, &p->key);
}
