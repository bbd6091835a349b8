/* The CUDA backend: the card, its memory, its stream, the op table, host lists, recordings and errors. */
#include "ops/cuda/products.h"

extern "C" {
#include "base/env.h"
}

#include <cstdio>

/* One recorded sequence of calls. */
struct hh_cuda_recording {
    hh_cuda_recording *next;
    const void *owner;
    uint64_t key, hash;
    bool met; /* the first time runs as it comes, so that libraries have loaded what they need, and lists are counted */
    bool full; /* more lists than the first time, and there is no room */
    size_t list_bytes;
    hh_cuda_lists lists;
    cudaGraphExec_t graph;
};

/* Off until it has run on a card. */
#ifndef HH_CUDA_BRANCHES
#define HH_CUDA_BRANCHES 0
#endif

#define SPARE_LIST_BYTES ((size_t)64 << 10) /* of a recording, beside what its first time took */

static hh_code fail_cuda(hh_error *err, hh_code code, const char *what, cudaError_t e) {
    return hh_fail(err, code, "CUDA: %s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}

/* -- errors -- */

void hh_cuda_fault(hh_backend *be, const char *what, const char *why) {
    hh_cuda *c = hh_cuda_of(be);
    if (c->fault.code != HH_OK) return;
    char where[48] = "";
    if (be->layer >= 0) snprintf(where, sizeof where, " of layer %lld", (long long)be->layer);
    hh_fail(&c->fault, HH_EUNSUPPORTED, "CUDA: %s%s: %s", what, where, why);
}

bool hh_cuda_begin(hh_backend *be, const char *op, const void *bytes, size_t n) {
    hh_cuda *c = hh_cuda_of(be);
    if (c->mode != HH_CUDA_RUN) c->hash = hh_cuda_mix(c->hash, bytes, n);
    c->op = op;
    return c->mode != HH_CUDA_REPLAY && c->fault.code == HH_OK;
}

void hh_cuda_end(hh_backend *be, cudaError_t code) {
    hh_cuda *c = hh_cuda_of(be);
    if (code == cudaSuccess && c->check && c->mode == HH_CUDA_RUN) code = cudaStreamSynchronize(c->stream);
    if (code != cudaSuccess) hh_cuda_fault(be, c->op, cudaGetErrorString(code));
}

void (*hh_cuda_on_launch)(const char *kernel);

void hh_cuda_tell_launch(const void *kernel) {
    const char *name = NULL;
    if (cudaFuncGetName(&name, kernel) == cudaSuccess) hh_cuda_on_launch(name);
}

static cudaError_t wait_for_all(const hh_cuda *c) {
    cudaError_t e = cudaStreamSynchronize(c->main);
    return e == cudaSuccess && c->branch ? cudaStreamSynchronize(c->side) : e;
}

static hh_code sync(hh_backend *be, hh_error *err) {
    hh_cuda *c = hh_cuda_of(be);
    cudaError_t e = wait_for_all(c);
    if (c->fault.code == HH_OK && e != cudaSuccess)
        hh_fail(&c->fault, HH_EUNSUPPORTED,
                "CUDA: %s, in one of the operations up to '%s'; run again with HYDRAHEAD_CHECK=cuda to find it",
                cudaGetErrorString(e), c->op ? c->op : "the start");
    if (c->fault.code == HH_OK) return HH_OK;
    *err = c->fault;
    return err->code;
}

/* -- memory -- */

static hh_code init_arena(hh_backend *be, hh_arena *out, const char *name, size_t bytes, hh_error *err) {
    size_t free_bytes = 0, all = 0;
    *out = (hh_arena){name, NULL, 0, 0, 0, true};
    size_t size = (bytes + HH_ARENA_ALIGN - 1) / HH_ARENA_ALIGN * HH_ARENA_ALIGN;
    cudaError_t e = cudaMalloc((void **)&out->base, size ? size : HH_ARENA_ALIGN);
    if (e != cudaSuccess) {
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &all);
        out->base = NULL;
        return hh_fail(err, HH_ENOMEM,
                       "the %s needs %.2f GiB on the GPU, which has %.2f of %.2f GiB free; `hydrahead plan` shows what "
                       "takes how much",
                       name, (double)bytes / (1 << 30), (double)free_bytes / (1 << 30), (double)all / (1 << 30));
    }
    out->size = size;
    (void)be;
    return HH_OK;
}

static void release_arena(hh_backend *be, hh_arena *a) {
    cudaStreamSynchronize(hh_cuda_of(be)->stream);
    cudaFree(a->base);
    *a = (hh_arena){a->name, NULL, 0, 0, 0, false};
}

static hh_code init_host_arena(hh_backend *be, hh_arena *out, const char *name, size_t bytes, hh_error *err) {
    *out = (hh_arena){name, NULL, 0, 0, 0, false};
    size_t size = (bytes + HH_ARENA_ALIGN - 1) / HH_ARENA_ALIGN * HH_ARENA_ALIGN;
    cudaError_t e = cudaMallocHost((void **)&out->base, size ? size : HH_ARENA_ALIGN);
    (void)be;
    if (e != cudaSuccess) {
        out->base = NULL;
        return fail_cuda(err, HH_ENOMEM, "the host has no memory that the GPU can reach", e);
    }
    out->size = size;
    return HH_OK;
}

static void release_host_arena(hh_backend *be, hh_arena *a) {
    cudaStreamSynchronize(hh_cuda_of(be)->stream);
    cudaFreeHost(a->base);
    *a = (hh_arena){a->name, NULL, 0, 0, 0, false};
}

static void measure_memory(hh_backend *be, size_t *free_bytes, size_t *all) {
    (void)be;
    if (cudaMemGetInfo(free_bytes, all) != cudaSuccess) *free_bytes = *all = 0;
}

static void to_device(hh_backend *be, void *dst, const void *src, size_t bytes) {
    hh_cuda *c = hh_cuda_of(be);
    HH_ASSERT(c->mode == HH_CUDA_RUN);
    if (!bytes || !hh_cuda_begin(be, "copy to the GPU", NULL, 0)) return;
    cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, c->stream);
    hh_cuda_end(be, e == cudaSuccess ? cudaStreamSynchronize(c->stream) : e);
}

static void to_host(hh_backend *be, void *dst, const void *src, size_t bytes) {
    hh_cuda *c = hh_cuda_of(be);
    HH_ASSERT(c->mode == HH_CUDA_RUN);
    if (!bytes || !hh_cuda_begin(be, "copy from the GPU", NULL, 0)) return;
    cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, c->stream);
    hh_cuda_end(be, e == cudaSuccess ? cudaStreamSynchronize(c->stream) : e);
}

void hh_cuda_scratch_begin(hh_backend *be) {
    hh_arena_reset(&be->scratch, 0);
}

void *hh_cuda_scratch(hh_backend *be, size_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    void *p = hh_arena_alloc(&be->scratch, bytes);
    hh_cuda_poison(be, p, bytes, bytes, 1);
    return p;
}

void hh_cuda_poison(hh_backend *be, void *at, size_t apart, size_t bytes, size_t rows) {
    hh_cuda *c = hh_cuda_of(be);
    if (!c->check || !bytes || !hh_cuda_begin(be, "poison", NULL, 0)) return;
    hh_cuda_end(be, apart == bytes ? cudaMemsetAsync(at, 0xff, bytes * rows, c->stream)
                                   : cudaMemset2DAsync(at, apart, 0xff, bytes, rows, c->stream));
}

size_t hh_cuda_scratch_left(hh_backend *be) {
    return be->scratch.size - be->scratch.used;
}

/* -- host lists -- */

static hh_code init_lists(hh_cuda_lists *l, size_t bytes, hh_error *err) {
    cudaError_t e = cudaMallocHost((void **)&l->host, bytes);
    if (e == cudaSuccess) e = cudaMalloc((void **)&l->device, bytes);
    l->size = bytes;
    return e == cudaSuccess ? HH_OK : fail_cuda(err, HH_ENOMEM, "no memory for lists", e);
}

static void release_lists(hh_cuda_lists *l) {
    if (l->host) cudaFreeHost(l->host);
    if (l->device) cudaFree(l->device);
    memset(l, 0, sizeof *l);
}

/* A list of the ring with these very bytes; lists are not written again before the ring is full. */
static char *find_recent(const hh_cuda_lists *l, const void *list, size_t bytes) {
    for (int i = 0; i < HH_CUDA_RECENT_LISTS; i++)
        if (l->recent[i].bytes == bytes && !memcmp(l->host + l->recent[i].at, list, bytes))
            return l->device + l->recent[i].at;
    return NULL;
}

void *hh_cuda_list_bytes(hh_backend *be, const void *list, size_t bytes) {
    hh_cuda *c = hh_cuda_of(be);
    hh_cuda_lists *l = c->lists;
    if (!list || !bytes) return NULL;
    size_t room = (bytes + 15) / 16 * 16;
    if (c->mode == HH_CUDA_RUN) {
        if (c->current) c->current->list_bytes += room;
        HH_ASSERT(room <= l->size);
        char *known = find_recent(l, list, bytes);
        if (known) return known;
    }
    if (l->used + room > l->size && c->mode != HH_CUDA_RUN) {
        c->current->full = true;
        return l->device; /* nobody will read it */
    }
    if (l->used + room > l->size) {
        hh_cuda_end(be, wait_for_all(c)); /* the ring's readers are done */
        l->used = 0;
        memset(l->recent, 0, sizeof l->recent);
    }
    char *host = l->host + l->used, *device = l->device + l->used;
    l->used += room;
    memcpy(host, list, bytes);
    if (c->mode != HH_CUDA_RUN) return device;
    unsigned at = l->next_recent++ % HH_CUDA_RECENT_LISTS;
    l->recent[at].at = (size_t)(host - l->host);
    l->recent[at].bytes = bytes;
    if (hh_cuda_begin(be, "copy of a list", NULL, 0))
        hh_cuda_end(be, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, c->stream));
    return device;
}

/* -- branches -- */

/* What is called in `later` from now on runs behind all that was called in `earlier`. */
static void order_streams(hh_backend *be, cudaStream_t earlier, cudaStream_t later) {
    hh_cuda *c = hh_cuda_of(be);
    if (!hh_cuda_begin(be, "a branch", NULL, 0)) return;
    cudaError_t e = cudaEventRecord(c->parted, earlier);
    hh_cuda_end(be, e == cudaSuccess ? cudaStreamWaitEvent(later, c->parted, 0) : e);
}

/* What was copied in the side's stream may not be there yet for the other; what was before it is there for both. */
static void forget_lists_since(hh_cuda_lists *l, unsigned first) {
    if (l->next_recent - first > HH_CUDA_RECENT_LISTS) first = l->next_recent - HH_CUDA_RECENT_LISTS;
    for (unsigned i = first; i != l->next_recent; i++) l->recent[i % HH_CUDA_RECENT_LISTS].bytes = 0;
}

static void branch(hh_backend *be, hh_branch b) {
    hh_cuda *c = hh_cuda_of(be);
    if (c->check) return; /* every op is waited for */
    HH_ASSERT(b == HH_BRANCH_NONE ? c->branch == HH_BRANCH_MAIN : c->branch + 1 == b);
    c->branch = b;
    if (b == HH_BRANCH_NONE) {
        order_streams(be, c->side, c->main);
        be->scratch = c->whole_scratch;
        return;
    }
    if (b == HH_BRANCH_SIDE) {
        order_streams(be, c->main, c->side);
        c->whole_scratch = be->scratch;
        c->lists_before = c->ring.next_recent;
    } else {
        forget_lists_since(&c->ring, c->lists_before);
    }
    const size_t half = c->whole_scratch.size / 2 / 256 * 256;
    be->scratch.base = c->whole_scratch.base + (b == HH_BRANCH_SIDE ? half : 0);
    be->scratch.size = half;
    hh_arena_reset(&be->scratch, 0);
    c->stream = b == HH_BRANCH_SIDE ? c->side : c->main;
}

/* -- recordings -- */

static void free_recording(hh_cuda_recording *r) {
    if (r->graph) cudaGraphExecDestroy(r->graph);
    release_lists(&r->lists);
    hh_free(r);
}

static void record_begin(hh_backend *be, const void *owner, uint64_t key) {
    hh_cuda *c = hh_cuda_of(be);
    HH_ASSERT(c->mode == HH_CUDA_RUN);
    if (c->check || c->fault.code != HH_OK) return;
    hh_cuda_recording *r = c->recordings;
    while (r && (r->owner != owner || r->key != key)) r = r->next;
    if (!r) {
        r = (hh_cuda_recording *)hh_alloc_unguarded(sizeof *r);
        r->owner = owner;
        r->key = key;
        r->next = c->recordings;
        c->recordings = r;
    } else if (r->graph) { /* the last launch has read the lists before they change */
        hh_cuda_end(be, cudaStreamSynchronize(c->stream));
    }
    if (!r->met) {
        r->met = true;
        c->current = r; /* whose lists are counted */
        return;
    }
    if (!r->lists.host && init_lists(&r->lists, r->list_bytes / 4 * 5 + SPARE_LIST_BYTES, &c->fault) != HH_OK) return;
    c->current = r;
    c->lists = &r->lists;
    c->hash = HH_CUDA_MIX_START;
    r->lists.used = 0;
    c->mode = r->graph ? HH_CUDA_REPLAY : HH_CUDA_RECORD;
    if (c->mode == HH_CUDA_RECORD) hh_cuda_end(be, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));
}

static void launch_recording(hh_backend *be, hh_cuda_recording *r) {
    hh_cuda *c = hh_cuda_of(be);
    cudaError_t e = r->list_bytes ? cudaMemcpyAsync(r->lists.device, r->lists.host, r->list_bytes,
                                                    cudaMemcpyHostToDevice, c->stream)
                                  : cudaSuccess;
    hh_cuda_end(be, e == cudaSuccess ? cudaGraphLaunch(r->graph, c->stream) : e);
}

/* The next pass is recorded with longer lists. */
static void make_room(hh_cuda_recording *r) {
    r->list_bytes = 2 * r->lists.size;
    r->full = false;
    release_lists(&r->lists);
}

static bool record_end(hh_backend *be) {
    hh_cuda *c = hh_cuda_of(be);
    hh_cuda_recording *r = c->current;
    if (!r) return false;
    hh_cuda_mode mode = c->mode;
    c->mode = HH_CUDA_RUN;
    c->lists = &c->ring;
    c->current = NULL;
    if (mode == HH_CUDA_RUN) return false;
    if (mode == HH_CUDA_REPLAY && (r->full || c->hash != r->hash || r->lists.used != r->list_bytes)) {
        cudaGraphExecDestroy(r->graph);
        r->graph = NULL;
        if (r->full) make_room(r);
        return true;
    }
    if (mode == HH_CUDA_RECORD) {
        cudaGraph_t graph = NULL;
        cudaError_t e = cudaStreamEndCapture(c->stream, &graph);
        if (r->full) {
            if (graph) cudaGraphDestroy(graph);
            make_room(r);
            return true;
        }
        /* else all kernels have the priority of the stream that the graph is launched in: branches would be equal */
        if (e == cudaSuccess) e = cudaGraphInstantiate(&r->graph, graph, cudaGraphInstantiateFlagUseNodePriority);
        if (graph) cudaGraphDestroy(graph);
        r->hash = c->hash;
        r->list_bytes = r->lists.used;
        c->op = "a recorded sequence";
        if (e != cudaSuccess) {
            hh_cuda_end(be, e);
            return false;
        }
    }
    launch_recording(be, r);
    return false;
}

static void record_drop(hh_backend *be, const void *owner) {
    hh_cuda *c = hh_cuda_of(be);
    cudaStreamSynchronize(c->stream);
    for (hh_cuda_recording **at = &c->recordings; *at;) {
        hh_cuda_recording *r = *at;
        if (r->owner != owner) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        free_recording(r);
    }
}

/* -- opening -- */

int hh_cuda_taken_for;

#define HH_CUDA(name) extern "C" hh_##name##_fn hh_##name##_cuda;
#include "ops/cuda/table.def"
#undef HH_CUDA

static void fill_table(hh_ops *ops) {
    memset(ops, 0, sizeof *ops);
#define HH_CUDA(name) ops->name = hh_##name##_cuda;
#include "ops/cuda/table.def"
#undef HH_CUDA
}

static void close_cuda(hh_backend *be) {
    hh_cuda *c = hh_cuda_of(be);
    if (c->main) wait_for_all(c);
    while (c->recordings) {
        hh_cuda_recording *r = c->recordings;
        c->recordings = r->next;
        free_recording(r);
    }
    if (c->main && be->scratch.base) release_arena(be, &be->scratch);
    release_lists(&c->ring);
    hh_cuda_products_release(c);
    if (c->workspace) cudaFree(c->workspace);
    if (c->lt) cublasLtDestroy(c->lt);
    if (c->parted) cudaEventDestroy(c->parted);
    if (c->side) cudaStreamDestroy(c->side);
    if (c->main) cudaStreamDestroy(c->main);
    hh_free(c);
}

static hh_code choose_device(hh_cuda *c, int device, hh_error *err) {
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || !n)
        return hh_fail(err, HH_EUNSUPPORTED,
                       "no GPU can be used: %s; check the driver with nvidia-smi, or leave --device out to run on the "
                       "CPU",
                       e == cudaSuccess ? "the driver sees none" : cudaGetErrorString(e));
    if (device < 0 || device >= n)
        return hh_fail(err, HH_EINVAL, "there is no GPU number %d; this machine has %d, numbered from 0", device, n);
    cudaDeviceProp p;
    e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess) return fail_cuda(err, HH_EUNSUPPORTED, "the GPU does not answer", e);
    c->device = device;
    c->n_sms = p.multiProcessorCount;
    c->arch = p.major * 10 + p.minor;
    c->shared_bytes = p.sharedMemPerBlockOptin;
    c->l2_bytes = (size_t)p.l2CacheSize;
    if (hh_cuda_taken_for) c->arch = hh_cuda_taken_for, c->shared_bytes = (size_t)(c->arch == 80 ? 163 : 99) << 10;
    if (c->arch < 80)
        return hh_fail(err, HH_EUNSUPPORTED, "GPU %d (%s) has compute capability %d.%d; bf16 needs 8.0 or later",
                       device, p.name, p.major, p.minor);
    return HH_OK;
}

static hh_code open_parts(hh_cuda *c, hh_error *err) {
    hh_backend *be = &c->backend;
    int lowest = 0, highest = 0;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&c->main, cudaStreamNonBlocking, lowest);
    if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&c->side, cudaStreamNonBlocking, highest);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&c->parted, cudaEventDisableTiming);
    c->stream = c->main;
    if (e == cudaSuccess) e = cudaMalloc(&c->workspace, HH_CUDA_WORKSPACE_BYTES);
    if (e != cudaSuccess) return fail_cuda(err, HH_ENOMEM, "no stream or workspace", e);
    if (cublasLtCreate(&c->lt) != CUBLAS_STATUS_SUCCESS)
        return hh_fail(err, HH_EUNSUPPORTED, "CUDA: cuBLASLt cannot be started");
    hh_cuda_products_init(c);
    HH_TRY(init_lists(&c->ring, HH_CUDA_LIST_BYTES, err));
    return init_arena(be, &be->scratch, "scratch", HH_CUDA_SCRATCH_BYTES, err);
}

extern "C" hh_code hh_cuda_open(hh_backend **out, int device, hh_precision precision, hh_error *err) {
    *out = NULL;
    hh_cuda *c = (hh_cuda *)hh_alloc(sizeof *c);
    hh_backend *be = &c->backend;
    hh_code code = choose_device(c, device, err);
    if (code != HH_OK) {
        hh_free(c);
        return code;
    }
    fill_table(&c->ops);
    be->name = "cuda";
    be->isa = "cuda";
    be->ops = &c->ops;
    be->host_memory = false;
    be->activation = precision == HH_PRECISION_F32 ? HH_DTYPE_F32 : HH_DTYPE_BF16;
    be->layer = -1;
    be->pass_tokens = 8192;
    be->decode_tokens = 16;
    be->n_threads = 1;
    be->precision = precision;
    be->impl = c;
    be->to_device = to_device;
    be->to_host = to_host;
    be->arena_init = init_arena;
    be->arena_release = release_arena;
    be->host_arena_init = init_host_arena;
    be->host_arena_release = release_host_arena;
    be->sync = sync;
    be->memory = measure_memory;
    be->reserved = HH_CUDA_SCRATCH_BYTES + HH_CUDA_WORKSPACE_BYTES + HH_CUDA_LIST_BYTES;
    be->record_begin = record_begin;
    be->record_end = record_end;
    be->record_drop = record_drop;
    if (HH_CUDA_BRANCHES) be->branch = branch;
    be->close = close_cuda;
    c->lists = &c->ring;
    c->check = hh_env_get()->check_cuda;
    code = open_parts(c, err);
    if (code != HH_OK) {
        close_cuda(be);
        return code;
    }
    *out = be;
    return HH_OK;
}
