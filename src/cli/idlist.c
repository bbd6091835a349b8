/* Token ids on the command line; see ids.h. */
#include "cli/idlist.h"

#include "base/filemap.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static hh_code parse(hh_ids *out, const char *where, const char *at, int64_t vocab, hh_error *err) {
    for (;;) {
        while (*at == ',' || isspace((unsigned char)*at)) at++;
        if (!*at) break;
        char *end;
        long long id = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ',' && !isspace((unsigned char)*end)))
            return hh_fail(err, HH_EINVAL, "%s: '%.12s' is not a token id (number %lld of the list)", where, at,
                           (long long)out->len);
        if (id < 0 || id >= vocab)
            return hh_fail(err, HH_EINVAL,
                           "%s: token id %lld (number %lld of the list) is outside the model's vocabulary of %lld",
                           where, id, (long long)out->len, (long long)vocab);
        hh_ids_push(out, (int32_t)id);
        at = end;
    }
    return out->len ? HH_OK : hh_fail(err, HH_EINVAL, "%s: no token ids", where);
}

hh_code hh_cli_read_ids(hh_ids *out, const char *text, int64_t vocab, hh_error *err) {
    const bool numbers = isdigit((unsigned char)*text) || text[strspn(text, "-+0123456789, \t\n")] == 0;
    if (numbers && !hh_file_exists(text)) return parse(out, "--ids", text, vocab, err);
    hh_buf file = {0};
    hh_code code = hh_file_read(text, (size_t)1 << 30, &file, err);
    if (code == HH_OK && memchr(file.data, 0, file.len))
        code = hh_fail(err, HH_EINVAL, "%s: not a text file of token ids", text);
    if (code == HH_OK) code = parse(out, text, file.data ? file.data : "", vocab, err);
    hh_buf_release(&file);
    return code;
}
