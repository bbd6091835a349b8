/* nano's tokenizer, which all tests of a program use: cmocka's group set-up and teardown. */
#ifndef HH_TESTS_DATA_NANO_H
#define HH_TESTS_DATA_NANO_H

#include "support/support.h"
#include "text/tokenizer.h"

static hh_error err;
static hh_tokenizer *nano;

static int open_nano(void **state) {
    (void)state;
    return hh_tokenizer_open_json(&nano, "models/nano/tokenizer.json", &err) != HH_OK;
}

static int close_nano(void **state) {
    (void)state;
    hh_tokenizer_close(nano);
    return 0;
}

#endif
