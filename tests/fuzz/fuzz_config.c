/* Any text as config.json: refused with a sentence, or a configuration that survives being written and read again. */
#include "model/config.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hh_config config, again;
    hh_error err = {0};
    if (hh_config_parse(&config, "fuzz.json", (const char *)data, size, &err) != HH_OK) {
        HH_ASSERT(strncmp(err.text, "fuzz.json: ", 11) == 0);
        return 0;
    }
    double f[1024], factor;
    hh_rope_frequencies(&config, f, &factor);
    for (int64_t l = 0; l < config.n_layers; l++) {
        int32_t kv[HH_MAX_HEADS], of_fa[HH_MAX_HEADS];
        HH_ASSERT(hh_config_kept_kv(&config, l, kv, of_fa) <= config.n_kv_heads);
    }
    json_t *json = hh_config_to_json(&config);
    char *text = json_dumps(json, JSON_REAL_PRECISION(17));
    if (hh_config_parse(&again, "written.json", text, strlen(text), &err) != HH_OK) hh_assert_failed(text, 0, err.text);
    HH_ASSERT(again.n_heads == config.n_heads && again.head_dim == config.head_dim && again.hybrid == config.hybrid);
    HH_ASSERT(memcmp(again.fa, config.fa, sizeof config.fa) == 0);
    hh_free(text);
    json_decref(json);
    return 0;
}
