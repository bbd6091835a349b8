/* Between model.c, load.c and save.c: from named tensors of a store to slots, and the flat block of a trained model. */
#ifndef HH_MODEL_LOAD_H
#define HH_MODEL_LOAD_H

#include "model/model.h"

/* Puts a dense hh_real tensor for every parameter into `a`, one behind another; returns them all as one flat tensor. */
hh_tensor hh_place_flat(hh_arena *a, const hh_param *param, int64_t n);

/* Where every parameter of m (config and param set) comes from in m->store, checked: names, shapes, types, nothing
 * missing and nothing left over. */
typedef struct hh_source {
    hh_tensor t;    /* in the map */
    hh_dtype dtype; /* the type it will have in memory */
    bool in_place;  /* used from the map as it is */
    bool unrotate;  /* GGUF's interleaved q and k rows of the llama family are put back into halves */
} hh_source;
hh_code hh_sources_find(hh_source *out, const hh_model *m, hh_load load, hh_error *err);
/* Places what is not used in place into `a` (counting or real) and sets the slots. */
void hh_sources_place(hh_model *m, const hh_source *source, hh_load load, hh_arena *a);
/* Copies into the placed slots, in large pieces, and converts there where the model lives. */
hh_code hh_sources_read(hh_model *m, const hh_source *source, hh_error *err);

/* Row (or, for W_O, head's columns) i in memory is row order[i] of the file; NULL: in order. */
const int32_t *hh_param_order(const hh_model *m, const hh_param *p);

#endif
