/* oneDNN's products; see gemm.h. */
#include "ops/gemm.h"

#include "base/parallel.h"
#include "base/status.h"

#include <oneapi/dnnl/dnnl.h>
#include <string.h>

void hh_gemm_f32(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                 int64_t ldb, float *c, int64_t ldc, bool add) {
    if (m == 0 || n == 0) return;
    hh_parallel_tame_libraries();
    dnnl_status_t s =
        dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, add ? 1.0f : 0.0f, c, ldc);
    HH_ASSERT(s == dnnl_success);
}

bool hh_gemm_has_bf16(void) {
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return isa != dnnl_cpu_isa_all && (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

/* A compiled product: the shape is the key. */
typedef struct shape {
    int64_t m, n, k, lda, ldb, ldc, ta, tb, add;
} shape;

typedef struct product {
    shape s;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
} product;

/* oneDNN's primitives share scratch within a thread and are not to be run by two at once: each thread has its own. */
enum { MAX_PRODUCTS = 64 };
static _Thread_local struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    product product[MAX_PRODUCTS];
    int n, next; /* compiled; the one to be replaced */
} mine;

static void must(dnnl_status_t s) {
    HH_ASSERT(s == dnnl_success);
}

static dnnl_memory_desc_t describe(int64_t rows, int64_t cols, int64_t ld, bool transposed, dnnl_data_type_t type) {
    dnnl_memory_desc_t d;
    const dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
    must(dnnl_memory_desc_init_by_strides(&d, 2, dims, type, strides));
    return d;
}

static void compile(product *p, const shape *s) {
    const dnnl_memory_desc_t a = describe(s->m, s->k, s->lda, s->ta, dnnl_bf16);
    const dnnl_memory_desc_t b = describe(s->k, s->n, s->ldb, s->tb, dnnl_bf16);
    const dnnl_memory_desc_t c = describe(s->m, s->n, s->ldc, false, dnnl_f32);
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t after;
    must(dnnl_primitive_attr_create(&attributes));
    must(dnnl_post_ops_create(&after));
    if (s->add) must(dnnl_post_ops_append_sum(after, 1.0f));
    must(dnnl_primitive_attr_set_post_ops(attributes, after));
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t described;
    must(dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c));
    must(dnnl_primitive_desc_create(&described, &matmul, attributes, mine.engine, NULL));
    must(dnnl_primitive_create(&p->primitive, described));
    must(dnnl_primitive_desc_destroy(described));
    must(dnnl_post_ops_destroy(after));
    must(dnnl_primitive_attr_destroy(attributes));
    must(dnnl_memory_create(&p->a, &a, mine.engine, DNNL_MEMORY_NONE));
    must(dnnl_memory_create(&p->b, &b, mine.engine, DNNL_MEMORY_NONE));
    must(dnnl_memory_create(&p->c, &c, mine.engine, DNNL_MEMORY_NONE));
    p->s = *s;
}

static void forget(product *p) {
    must(dnnl_primitive_destroy(p->primitive));
    must(dnnl_memory_destroy(p->a));
    must(dnnl_memory_destroy(p->b));
    must(dnnl_memory_destroy(p->c));
}

static product *find(const shape *s) {
    for (int i = 0; i < mine.n; i++)
        if (memcmp(&mine.product[i].s, s, sizeof *s) == 0) return &mine.product[i];
    if (!mine.engine) {
        must(dnnl_engine_create(&mine.engine, dnnl_cpu, 0));
        must(dnnl_stream_create(&mine.stream, mine.engine, dnnl_stream_default_flags));
    }
    product *p;
    if (mine.n < MAX_PRODUCTS) {
        p = &mine.product[mine.n++];
    } else {
        p = &mine.product[mine.next++ % MAX_PRODUCTS];
        forget(p);
    }
    compile(p, s);
    return p;
}

/* The operands are read only; oneDNN's handles are not const. */
static void set_handle(dnnl_memory_t memory, const void *data) {
    void *handle;
    memcpy(&handle, &data, sizeof handle);
    must(dnnl_memory_set_data_handle(memory, handle));
}

void hh_gemm_bf16(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b,
                  int64_t ldb, float *c, int64_t ldc, bool add) {
    if (m == 0 || n == 0) return;
    hh_parallel_tame_libraries();
    const shape s = {m, n, k, lda, ldb, ldc, ta, tb, add};
    product *p = find(&s);
    set_handle(p->a, a);
    set_handle(p->b, b);
    set_handle(p->c, c);
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->c}};
    must(dnnl_primitive_execute(p->primitive, mine.stream, 3, arguments));
    must(dnnl_stream_wait(mine.stream));
}

/* Every block goes by way of `block`: oneDNN's kernel, and with it the last bit, depends on the row length of C too. */
void hh_gemm_bf16_rows(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b, int64_t ldb, float *c,
                       int64_t ldc, bool add, float *block) {
    for (int64_t i = 0; i < m; i += HH_GEMM_ROWS) {
        const int64_t end = i + HH_GEMM_ROWS < m ? i + HH_GEMM_ROWS : m;
        hh_gemm_bf16(false, true, HH_GEMM_ROWS, n, k, a + i * k, k, b, ldb, block, n, false);
        for (int64_t r = i; r < end; r++) {
            const float *from = block + (r - i) * n;
            float *to = c + r * ldc;
            for (int64_t l = 0; l < n; l++) to[l] = (add ? to[l] : 0) + from[l];
        }
    }
}
