/* What a verb that runs a model opens: backend, model, tokenizer; and what it says of memory in the end. */
#ifndef HH_CLI_OPENED_H
#define HH_CLI_OPENED_H

#include "cli/cli.h"
#include "model/forward.h"
#include "text/tokenizer.h"

typedef struct hh_cli_opened {
    hh_backend *be;
    hh_model *m;
    hh_tokenizer *t; /* NULL where none was asked for */
} hh_cli_opened;

/* `path` as hh_model_open has it; weights in their stored type. What has been opened is closed with
 * hh_cli_opened_close, also after a failure. */
hh_code hh_cli_opened_open(hh_cli_opened *out, const hh_cli_common *common, const char *path, bool tokenizer,
                           hh_error *err);
void hh_cli_opened_close(hh_cli_opened *o);
/* The tokenizer alone. */
hh_code hh_cli_tokenizer(hh_tokenizer **out, const char *path, hh_error *err);

/* HH_EINVAL when a checkpoint made of `model` cannot go to `out_dir`: a file, the model itself, a training run, or, without
 * `force`, another checkpoint. */
hh_code hh_cli_check_out(const char *model, const char *out_dir, bool force, hh_error *err);

/* Every end token that the configuration or the tokenizer names. */
#define HH_CLI_MAX_END_IDS 64
int64_t hh_cli_end_ids(const hh_cli_opened *o, int32_t out[HH_CLI_MAX_END_IDS]);

/* All of standard input, added to out. Who sits at a terminal is told that it is waited for. */
hh_code hh_cli_read_stdin(hh_buf *out, hh_error *err);

/* Resident memory of this process now, and at its peak, in bytes; 0 where the system does not say. */
size_t hh_cli_resident_bytes(void);
size_t hh_cli_machine_bytes(void); /* of memory that the machine has; 0: not known */
size_t hh_cli_peak_bytes(void);
/* "512 B", "3.2 MiB", "1.05 GiB": for people. */
void hh_cli_bytes_text(double bytes, char out[32]);

#endif
