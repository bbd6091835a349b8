/* Any text as generation_config.json beside a config.json: refused with a sentence, or end tokens that are ids. */
#include "fuzz/folder.h"
#include "model/config_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hh_config config, start;
    hh_error err = {0};
    static const char text[] =
        "{\"model_type\": \"llama\", \"vocab_size\": 99, \"hidden_size\": 8, \"num_hidden_layers\": 1, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"intermediate_size\": 8, \"eos_token_id\": 2}";
    if (fuzz_make_folder() && hh_config_parse(&start, "config.json", text, strlen(text), &err) != HH_OK)
        hh_assert_failed("config.json", 0, err.text);
    config = start;
    fuzz_write("generation_config.json", data, size);
    char *path = fuzz_path("generation_config.json");
    const hh_code code = hh_config_add_generation(&config, path, &err);
    HH_ASSERT(code == HH_OK || strncmp(err.text, path, strlen(path)) == 0);
    HH_ASSERT(config.n_end_ids >= 0 && config.n_end_ids <= 8);
    for (int i = 0; code == HH_OK && i < config.n_end_ids; i++) HH_ASSERT(config.end_ids[i] >= 0);
    hh_free(path);
    return 0;
}
