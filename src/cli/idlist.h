/* Token ids on the command line: "1,2,3", or a file of such numbers. */
#ifndef HH_CLI_IDLIST_H
#define HH_CLI_IDLIST_H

#include "text/tokenizer.h"

/* Numbers separated by commas or white space; at least one, all in [0, vocab). `text` is a file's path unless it begins
 * with a digit or holds nothing but numbers, and no such file exists. */
hh_code hh_cli_read_ids(hh_ids *out, const char *text, int64_t vocab, hh_error *err);

#endif
