/* Any bytes as the state of a training run: refused with a sentence that names the file, and the run is as it was. The
 * first byte that is a settings' text of another run is named in the sentence, so settings are walked too. */
#include "fuzz/folder.h"
#include "fuzz/fuzzed_model.h"
#include "train/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static hh_code no_rows(void *context, int64_t step, int64_t row, int64_t n_rows, int64_t length, int32_t *ids,
                       uint8_t *flags, hh_error *err) {
    (void)context, (void)step, (void)row, (void)n_rows, (void)flags, (void)err;
    memset(ids, 0, (size_t)length * sizeof *ids);
    return HH_OK;
}

static hh_trainer *new_trainer(void) {
    static const int64_t length = 8;
    hh_error err = {0};
    hh_trainer *t;
    hh_model *m = fuzz_model();
    hh_trainer_options o = hh_trainer_defaults(&hh_stage_extend, 4);
    o.data.sequences = 1;
    o.data.length = &length;
    o.data.n_lengths = 1;
    o.data.micro_tokens = 8;
    o.data.fill = no_rows;
    if (hh_trainer_new(&t, &o, NULL, &m, 1, &err) != HH_OK) hh_assert_failed(__FILE__, __LINE__, err.text);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hh_trainer *t;
    static char *path;
    hh_error err = {0};
    if (fuzz_make_folder()) {
        t = new_trainer();
        path = fuzz_path("state");
    }
    fuzz_write("state", data, size);
    if (hh_state_read(t, "lr 1\nseed 2\n", path, &err) != HH_OK)
        HH_ASSERT(strncmp(err.text, path, strlen(path)) == 0 && t->step == 0);
    t->step = 0;
    return 0;
}
