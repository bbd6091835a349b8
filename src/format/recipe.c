/* Recipes; see recipe.h. */
#include "format/recipe.h"

#include "format/quote.h"
#include "format/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* As options are written: what could be taken for another word of a command line is none. */
static bool is_option_name(const char *name) {
    return *name && *name != '-' && name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-")] == 0;
}

static hh_code check_options(const json_t *object, const char *where, const char *path, hh_error *err) {
    const char *name;
    json_t *v;
    if (!object) return hh_fail(err, HH_EFORMAT, "%s: the recipe has no \"%s\", an object of options", path, where);
    if (!json_is_object(object)) return hh_fail(err, HH_EFORMAT, "%s: \"%s\" is not an object of options", path, where);
    if (json_object_size(object) > HH_RECIPE_MAX_OPTIONS)
        return hh_fail(err, HH_EFORMAT, "%s: \"%s\" has %zu options, more than %d", path, where,
                       json_object_size(object), HH_RECIPE_MAX_OPTIONS);
    json_object_foreach((json_t *)(uintptr_t)object, name, v) {
        hh_quote q;
        if (!is_option_name(name))
            return hh_fail(err, HH_EFORMAT, "%s: \"%s\" has %s, which is no option's name", path, where,
                           hh_quoted(&q, name, strlen(name)));
        if (!json_is_number(v) && !json_is_string(v) && !json_is_boolean(v) && !json_is_null(v))
            return hh_fail(err, HH_EFORMAT, "%s: \"%s\".\"%s\" is neither a number, a string nor true", path, where,
                           name);
    }
    return HH_OK;
}

static hh_code check_recipe(const json_t *recipe, const char *path, hh_error *err) {
    if (!json_is_null(json_object_get(recipe, "probe")))
        HH_TRY(check_options(json_object_get(recipe, "probe"), "probe", path, err));
    HH_TRY(check_options(json_object_get(recipe, "select"), "select", path, err));
    HH_TRY(check_options(json_object_get(recipe, "convert"), "convert", path, err));
    const json_t *train = json_object_get(recipe, "train"), *stage;
    if (!json_is_array(train)) return hh_fail(err, HH_EFORMAT, "%s: \"train\" is not a list of stages", path);
    size_t i;
    json_array_foreach(train, i, stage) {
        HH_TRY(check_options(stage, "train", path, err));
        if (!json_is_string(json_object_get(stage, "stage")))
            return hh_fail(err, HH_EFORMAT, "%s: \"train\"[%zu] does not name its \"stage\"", path, i);
    }
    return HH_OK;
}

hh_code hh_recipe_parse(json_t **out, const char *path, const char *text, size_t len, hh_error *err) {
    HH_TRY(hh_json_parse(out, path, text, len, err));
    const hh_code code = check_recipe(*out, path, err);
    if (code == HH_OK) return HH_OK;
    json_decref(*out);
    *out = NULL;
    return code;
}

/* 3e8 is written 300000000: options are counts more often than not. */
static void number_text(const json_t *v, char *out, size_t size) {
    const double x = json_number_value(v);
    if (json_is_integer(v))
        snprintf(out, size, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (x == floor(x) && fabs(x) < 9e15)
        snprintf(out, size, "%.0f", x);
    else
        snprintf(out, size, "%.17g", x);
}

void hh_recipe_options(const json_t *object, hh_recipe_option_fn *call, void *context) {
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, name, v) {
        char number[40];
        if (json_is_true(v)) {
            call(context, name, NULL);
        } else if (json_is_string(v)) {
            call(context, name, json_string_value(v));
        } else if (json_is_number(v)) {
            number_text(v, number, sizeof number);
            call(context, name, number);
        }
    }
}
