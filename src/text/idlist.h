/* Token ids in words: "1,2,3", or a file of such numbers. */
#ifndef HH_TEXT_IDLIST_H
#define HH_TEXT_IDLIST_H

#include "text/tokenizer.h"

/* Numbers separated by commas or white space, all in [0, vocab); there may be none. `where` is for messages. */
hh_code hh_ids_parse(hh_ids *out, const char *where, const char *text, size_t len, int64_t vocab, hh_error *err);
/* At least one. `words` is a file's path unless it begins with a digit or holds nothing but numbers, and no such file
 * exists; `option` names it in messages otherwise. */
hh_code hh_ids_read(hh_ids *out, const char *option, const char *words, int64_t vocab, hh_error *err);

#endif
