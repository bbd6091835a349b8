/* Any text as a recipe of transfer: refused with a sentence, or every option of every verb is handed over. */
#include "format/recipe.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_option(void *context, const char *name, const char *value) {
    HH_ASSERT(*name && *name != '-' && !strchr(name, '='));
    *(size_t *)context += 1 + (value ? strlen(value) : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const verbs[] = {"probe", "select", "convert"};
    hh_error err = {0};
    json_t *recipe = NULL, *stage;
    if (hh_recipe_parse(&recipe, "fuzz.json", (const char *)data, size, &err) != HH_OK) {
        HH_ASSERT(strncmp(err.text, "fuzz.json: ", 11) == 0 && !recipe);
        return 0;
    }
    size_t seen = 0, i;
    for (int v = 0; v < 3; v++) hh_recipe_options(json_object_get(recipe, verbs[v]), check_option, &seen);
    json_array_foreach(json_object_get(recipe, "train"), i, stage) hh_recipe_options(stage, check_option, &seen);
    json_decref(recipe);
    return 0;
}
