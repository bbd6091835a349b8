/* Small models whose weights follow from their names by one formula, here and in tools/make_model_golden.py, with what
 * PyTorch computed of them in tests/model/golden/. */
#ifndef HH_TESTS_SUPPORT_ZOO_H
#define HH_TESTS_SUPPORT_ZOO_H

#include "model/forward.h"

/* The weight `name` at element i of a tensor with `cols` columns (1: a vector); a float32. */
float zoo_value(const char *name, int64_t i, int64_t cols);

/* The cases of models.json; one by its name. Owned by the library, valid until the program ends. */
const json_t *zoo_cases(void);
const json_t *zoo_case(const char *name);
/* A checkpoint directory of a case's configuration in the temporary folder, written once. */
const char *zoo_directory(const json_t *one);
/* Opens it; fails the test when that fails. */
hh_model *zoo_open(hh_backend *be, const char *name, hh_load load);

/* ids of a case; *n of them. The caller frees. */
int32_t *zoo_ids(const json_t *one, int64_t *n);
/* Golden numbers in float64, from `at` on: of logits.f32 or gradients.f64. The caller frees. */
double *zoo_golden(const char *file, int64_t at, int64_t n);

/* Logits of all tokens of a sequence in one pass without a cache; [n, V] hh_real, the caller frees. */
hh_real *zoo_logits(const hh_model *m, const int32_t *ids, int64_t n);
/* The largest |a - b| over the largest |b|. */
double zoo_difference(const hh_real *a, const double *b, int64_t n);

/* The reference backend, float32 products. */
hh_backend *zoo_backend(void);

#endif
