/* What a checkpoint says of its training. */
#include "support/support.h"
#include "train/history.h"

#include <string.h>

static hh_error err;

static void stages_add_up(void **unused) {
    (void)unused;
    const char *dir = temp_folder();
    assert_int_equal(hh_history_tokens(dir), 0);
    assert_int_equal(hh_history_tokens("nowhere"), 0);
    temp_text("log.jsonl", "{\"step\": 0, \"tokens\": 100}\n{\"step\": 1, \"tokens\": 20}\n");
    assert_ok(
        hh_history_write(dir, "nano", &(hh_history_stage){.stage = "align", .teacher = "nano", .steps = 2}, &err));
    assert_int_equal(hh_history_tokens(dir), 120);
    /* the next stage starts from what the first left */
    assert_ok(hh_history_write(dir, dir, &(hh_history_stage){.stage = "distill", .teacher = "nano", .steps = 2}, &err));
    assert_int_equal(hh_history_tokens(dir), 240);
    hh_buf text = read_whole(temp_path("training.json"));
    assert_non_null(strstr(text.data, "align"));
    assert_non_null(strstr(text.data, "distill"));
    hh_buf_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(stages_add_up)};
    return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
