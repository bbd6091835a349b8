/* Any text as plan.json: refused with a sentence, or a plan that survives being written and read again. */
#include "convert/plan.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    hh_plan plan, again;
    if (hh_plan_parse(&plan, "fuzz.json", (const char *)data, size, &err) != HH_OK) {
        HH_ASSERT(strncmp(err.text, "fuzz.json: ", 11) == 0);
        return 0;
    }
    json_t *json = hh_plan_to_json(&plan);
    char *text = json_dumps(json, JSON_REAL_PRECISION(9));
    if (!text) hh_assert_failed("plan", 0, "cannot be written");
    if (hh_plan_parse(&again, "written.json", text, strlen(text), &err) != HH_OK) hh_assert_failed(text, 0, err.text);
    HH_ASSERT(again.n_layers == plan.n_layers && again.n_heads == plan.n_heads);
    HH_ASSERT(memcmp(again.rule, plan.rule, (size_t)(plan.n_layers * plan.n_heads)) == 0);
    hh_free(text);
    json_decref(json);
    hh_plan_release(&plan);
    hh_plan_release(&again);
    return 0;
}
