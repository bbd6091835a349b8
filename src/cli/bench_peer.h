/* What another program did of the same jobs: a file of lines as `bench --json` prints them, with its name in "peer". */
#ifndef HH_CLI_BENCH_PEER_H
#define HH_CLI_BENCH_PEER_H

#include "base/status.h"

#include <stdint.h>

/* Tokens a second, 0 where the file says nothing of this context. */
typedef struct hh_bench_peer {
    char name[64];
    double prefill; /* of its best kind */
    double decode;  /* of this kind; of its best where it has none of this */
} hh_bench_peer;

/* HH_EFORMAT when a line is no such line. */
hh_code hh_bench_peer_read(hh_bench_peer *out, const char *path, const char *kind, int64_t context, hh_error *err);

#endif
