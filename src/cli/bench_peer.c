/* A peer's lines; see bench_peer.h. */
#include "cli/bench_peer.h"

#include "base/filemap.h"
#include "format/json.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 1 << 24 };

typedef struct line {
    const char *name, *kind;
    int64_t context;
    double prefill, decode;
} line;

static hh_code read_line(line *l, hh_json_object o, hh_error *err) {
    *l = (line){.name = "peer", .kind = ""};
    HH_TRY(hh_json_string(o, "peer", &l->name, err));
    HH_TRY(hh_json_string(o, "kind", &l->kind, err));
    HH_TRY(hh_json_need(o, "context", err));
    HH_TRY(hh_json_int(o, "context", 1, INT64_MAX, &l->context, err));
    HH_TRY(hh_json_number(o, "prefill_tok_s", 0, 1e12, &l->prefill, err));
    return hh_json_number(o, "decode_tok_s", 0, 1e12, &l->decode, err);
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

hh_code hh_bench_peer_read(hh_bench_peer *out, const char *path, const char *kind, int64_t context, hh_error *err) {
    hh_buf text = {0};
    double of_kind = 0, of_any = 0;
    *out = (hh_bench_peer){.name = "peer"};
    HH_TRY(hh_file_read(path, MAX_BYTES, &text, err));
    hh_code code = HH_OK;
    for (char *rest = text.data, *at; code == HH_OK && (at = strsep(&rest, "\n"));) {
        json_t *json = NULL;
        line l;
        if (!*at) continue;
        code = hh_json_parse(&json, path, at, strlen(at), err);
        if (code == HH_OK) code = read_line(&l, (hh_json_object){json, path, ""}, err);
        if (code == HH_OK && l.context == context) {
            snprintf(out->name, sizeof out->name, "%s", l.name);
            out->prefill = larger(out->prefill, l.prefill);
            of_any = larger(of_any, l.decode);
            if (!strcmp(l.kind, kind)) of_kind = larger(of_kind, l.decode);
        }
        json_decref(json);
    }
    out->decode = of_kind > 0 ? of_kind : of_any;
    hh_buf_release(&text);
    return code;
}
