/* heads.json, the table that probing writes and selection reads: how much each query head matters, by measure.
 *
 * Read strictly: a table with holes, NaN or another model's shape would select heads at random without a word.
 */
#ifndef HH_CONVERT_HEADS_H
#define HH_CONVERT_HEADS_H

#include "model/config.h"

typedef struct hh_heads {
    int64_t n_layers, n_heads;    /* L, H */
    int64_t n_kv_heads, head_dim; /* G, D; 0: the file does not say */
    int64_t n_capabilities;
    double *score;       /* [L*H] S_h of docs/METHOD.md section 4 */
    double *mean_ie;     /* [L*H] mean over capabilities of the stronger of receiver and sender, unclamped */
    double *attribution; /* [L*H] mean over capabilities */
} hh_heads;

/* HH_EFORMAT names file, field and numbers. */
hh_code hh_heads_read(hh_heads *out, const char *path, hh_error *err);
/* From JSON text; `path` is for messages. Also the fuzz target's entry. */
hh_code hh_heads_parse(hh_heads *out, const char *path, const char *json, size_t size, hh_error *err);
void hh_heads_release(hh_heads *h);

/* Checks that the table is of a model of this shape and fills what the file did not say. */
hh_code hh_heads_bind(hh_heads *h, const char *path, const hh_config *c, hh_error *err);

#endif
