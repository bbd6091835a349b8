/* Recipes of `hydrahead transfer`: JSON objects whose members are options of the verbs that the recipe names. */
#ifndef HH_FORMAT_RECIPE_H
#define HH_FORMAT_RECIPE_H

#include "base/memory.h"

#include <jansson.h>

#define HH_RECIPE_MAX_OPTIONS 48 /* of one verb */

/* Parses and checks the whole shape, before anything is run: "probe", "select" and "convert" are objects of options
 * ("probe" may be null), "train" is a list of such objects, each with its "stage". HH_EFORMAT names path and member. *out
 * is the caller's. */
hh_code hh_recipe_parse(json_t **out, const char *path, const char *text, size_t len, hh_error *err);

/* Hands over one option; value NULL: a flag. Both are valid during the call. */
typedef void hh_recipe_option_fn(void *context, const char *name, const char *value);
/* The options of an object that was checked: true is a flag, false and null leave an option out, numbers and strings are
 * its value. */
void hh_recipe_options(const json_t *object, hh_recipe_option_fn *call, void *context);

#endif
