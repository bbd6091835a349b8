/* Any text as heads.json: refused with a sentence, or a table from which every strategy selects what was asked for. */
#include "convert/select.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    hh_heads h;
    if (hh_heads_parse(&h, "fuzz.json", (const char *)data, size, &err) != HH_OK) {
        HH_ASSERT(strncmp(err.text, "fuzz.json: ", 11) == 0);
        return 0;
    }
    int64_t n = h.n_layers * h.n_heads, k = n / 4 + 1;
    for (int s = 0; s < HH_SELECT_STRATEGIES; s++) {
        hh_plan p;
        hh_select_options o = {.strategy = (hh_strategy)s, .heads = k};
        if (hh_select(&p, &h, &o, &err) != HH_OK) continue;
        bool whole = s == HH_SELECT_KV || s == HH_SELECT_LAYERWISE;
        HH_ASSERT(whole ? hh_plan_count(&p) <= k : hh_plan_count(&p) == k);
        hh_plan_release(&p);
    }
    hh_heads_release(&h);
    return 0;
}
