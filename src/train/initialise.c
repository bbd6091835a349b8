/* Random initial weights; see initialise.h. */
#include "train/initialise.h"

#include "base/rng.h"
#include "tensor/mirror.h"

#include <math.h>
#include <string.h>

static bool ends_with(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && !strcmp(name + n - k, tail);
}

static void fill_normal(hh_mirror *mirror, hh_tensor t, double deviation, hh_rng rng) {
    hh_real *x = hh_mirror_write(mirror, t);
    for (int64_t i = 0; i < hh_tensor_count(t); i++) x[i] = (hh_real)(deviation * hh_rng_normal(&rng));
    hh_mirror_flush(mirror, t);
}

hh_code hh_model_initialise(hh_model *m, uint64_t seed, hh_error *err) {
    if (m->config.hybrid)
        return hh_fail(err, HH_EUNSUPPORTED,
                       "%s: a hybrid does not start from random weights; pretrain a dense model, then convert it",
                       m->path ? m->path : "the model");
    hh_mirror mirror = hh_mirror_of(m->be);
    for (int64_t i = 0; i < m->n_params; i++) {
        const hh_param *p = &m->param[i];
        bool residual = ends_with(p->name, "o_proj.weight") || ends_with(p->name, "down_proj.weight");
        if (ends_with(p->name, ".bias"))
            m->be->ops->fill(m->be, *p->slot, 0);
        else if (p->rank == 1)
            m->be->ops->fill(m->be, *p->slot, 1);
        else
            fill_normal(&mirror, *p->slot, residual ? 0.02 / sqrt(2.0 * (double)m->config.n_layers) : 0.02,
                        hh_rng_stream(seed, (uint64_t)i));
    }
    hh_mirror_release(&mirror);
    return m->be->sync(m->be, err);
}
