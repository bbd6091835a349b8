/* The backend that all tests of a program use: cmocka's group set-up and teardown. */
#ifndef HH_TESTS_MODEL_SHARED_BACKEND_H
#define HH_TESTS_MODEL_SHARED_BACKEND_H

#include "support/zoo.h"

static hh_backend *be;

static int open_backend(void **state) {
    (void)state;
    be = zoo_backend();
    return 0;
}

static int close_backend(void **state) {
    (void)state;
    hh_backend_close(be);
    return 0;
}

#endif
