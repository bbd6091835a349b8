/* What sessions of one model share: the activations of a pass, a step's logits and lists, the snapshots. */
#include "session/session_parts.h"

static int64_t chunk_of(const hh_backend *be, const hh_group_options *o) {
    return o->chunk > 0 ? o->chunk : be->pass_tokens;
}

static int64_t pass_tokens(const hh_backend *be, const hh_group_options *o) {
    const int64_t chunk = chunk_of(be, o);
    return chunk > o->most ? chunk : o->most;
}

static void place(hh_group *g, const hh_config *c, int64_t most, hh_arena *a, hh_arena *host) {
    g->logits = hh_tensor_place_2d(a, HH_DTYPE_REAL, most, c->vocab);
    g->candidate = hh_arena_alloc(host, (size_t)c->vocab * sizeof *g->candidate);
    g->span = hh_arena_alloc(host, (size_t)most * sizeof *g->span);
    g->cache = hh_arena_alloc(host, (size_t)most * sizeof *g->cache);
    g->stepping = hh_arena_alloc(host, (size_t)most * sizeof *g->stepping);
    g->index = hh_arena_alloc(host, (size_t)most * sizeof *g->index);
    g->ids = hh_arena_alloc(host, (size_t)most * sizeof *g->ids);
}

static void count_own(const hh_config *c, int64_t most, size_t *bytes, size_t *host_bytes) {
    hh_group g;
    hh_arena count, host;
    hh_arena_init_counting(&count, "run");
    hh_arena_init_counting(&host, "run");
    place(&g, c, most, &count, &host);
    *bytes = count.used;
    *host_bytes = host.used;
}

size_t hh_group_bytes(const hh_config *c, const hh_backend *be, const hh_group_options *o) {
    size_t own, host;
    count_own(c, o->most, &own, &host);
    return hh_run_bytes(c, be->activation, pass_tokens(be, o), o->most, HH_RUN_INFERENCE) + own + host;
}

static hh_code open_snapshots(hh_group *g, const hh_snapshots_options *options, hh_error *err) {
    if (!options) return HH_OK;
    hh_snapshots_options o = *options;
    o.kv_dtype = g->kv_dtype;
    return hh_snapshots_new(&g->snapshots, g->m, &o, err);
}

hh_code hh_group_new(hh_group **out, const hh_model *m, const hh_group_options *o, hh_error *err) {
    size_t own, host;
    *out = NULL;
    HH_ASSERT(o->most > 0);
    count_own(&m->config, o->most, &own, &host);
    hh_group *g = hh_alloc(sizeof *g);
    *g = (hh_group){.m = m, .chunk = chunk_of(m->be, o), .most = o->most, .kv_dtype = o->kv_dtype};
    for (int64_t l = 0; l < m->config.n_layers; l++) g->recurrent = g->recurrent || m->w.layer[l].n_gdn > 0;
    hh_code code = m->be->arena_init(m->be, &g->arena, "run", own, err);
    if (code == HH_OK) code = hh_arena_init(&g->host, "run", host, err);
    if (code == HH_OK) code = hh_run_new(&g->run, m, pass_tokens(m->be, o), o->most, HH_RUN_INFERENCE, err);
    if (code == HH_OK) code = open_snapshots(g, o->snapshots, err);
    if (code != HH_OK) {
        hh_group_free(g);
        return code;
    }
    place(g, &m->config, o->most, &g->arena, &g->host);
    *out = g;
    return HH_OK;
}

void hh_group_free(hh_group *g) {
    if (!g) return;
    hh_snapshots_free(g->snapshots);
    hh_run_free(g->run);
    if (g->arena.base) g->m->be->arena_release(g->m->be, &g->arena);
    hh_arena_release(&g->host);
    hh_free(g);
}

hh_snapshots *hh_group_snapshots(const hh_group *g) {
    return g->snapshots;
}
