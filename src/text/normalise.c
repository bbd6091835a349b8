/* Normalizer steps; see normalise.h. */
#include "text/normalise.h"
#include "text/utf8.h"

#include <string.h>

const char *hh_shadow(const char *text, size_t n, hh_buf *room) {
    size_t i = hh_utf8_valid_prefix(text, n);
    if (i == n) return text;
    hh_buf_clear(room);
    hh_buf_add(room, text, n);
    while (i < n) {
        room->data[i++] = 0x1a; /* SUBSTITUTE: neither letter nor number nor space */
        i += hh_utf8_valid_prefix(text + i, n - i);
    }
    return room->data;
}

hh_code hh_normaliser_add(hh_normaliser *n, hh_normalise_step step, const char *path, hh_error *err) {
    if (n->n_steps == HH_NORMALISE_MAX_STEPS) {
        hh_free(step.pattern);
        hh_free(step.content);
        hh_regex_free(step.regex);
        return hh_fail(err, HH_EUNSUPPORTED, "%s: normalizer has more than %d steps", path, HH_NORMALISE_MAX_STEPS);
    }
    n->steps[n->n_steps++] = step;
    return HH_OK;
}

void hh_normaliser_release(hh_normaliser *n) {
    for (int i = 0; i < n->n_steps; i++) {
        hh_free(n->steps[i].pattern);
        hh_free(n->steps[i].content);
        hh_regex_free(n->steps[i].regex);
    }
    n->n_steps = 0;
}

/* Room that replacements may take: a few short patterns could otherwise fill the memory. */
static size_t room_for(size_t len) {
    return len < SIZE_MAX / 128 ? len * 64 + ((size_t)1 << 20) : SIZE_MAX;
}

static hh_code fail_too_long(size_t len, hh_error *err) {
    return hh_fail(err, HH_EUNSUPPORTED, "normalizer: Replace makes more than %zu bytes of a text of %zu bytes",
                   room_for(len), len);
}

static hh_code replace_string(const hh_normalise_step *s, const char *text, size_t len, hh_buf *out, hh_error *err) {
    size_t n = strlen(s->pattern), at = 0;
    for (const char *found; (found = memmem(text + at, len - at, s->pattern, n)); at = (size_t)(found - text) + n) {
        hh_buf_add(out, text + at, (size_t)(found - text) - at);
        hh_buf_puts(out, s->content);
        if (out->len > room_for(len)) return fail_too_long(len, err);
    }
    hh_buf_add(out, text + at, len - at);
    return HH_OK;
}

static hh_code replace_regex(const hh_normalise_step *s, hh_regex_scratch *scratch, const char *text, size_t len,
                             hh_buf *out, hh_error *err) {
    hh_buf room = {0};
    const char *shadow = hh_shadow(text, len, &room);
    size_t at = 0;
    hh_code code = HH_OK;
    while (at < len) {
        int64_t lo, hi;
        code = hh_regex_match(s->regex, scratch, shadow, len, at, &lo, &hi, err);
        if (code != HH_OK || lo < 0) break;
        hh_buf_add(out, text + at, (size_t)lo - at);
        hh_buf_puts(out, s->content);
        at = (size_t)hi;
        if (out->len > room_for(len)) {
            code = fail_too_long(len, err);
            break;
        }
    }
    hh_buf_add(out, text + at, len - at);
    hh_buf_release(&room);
    return code;
}

static hh_code run_step(const hh_normalise_step *s, hh_regex_scratch *scratch, const char *text, size_t len,
                        hh_buf *out, hh_error *err) {
    switch (s->kind) {
    case HH_NORMALISE_UNICODE:
        hh_unicode_normalise(s->form, text, len, out);
        break;
    case HH_NORMALISE_PREPEND:
        if (len) hh_buf_puts(out, s->content);
        hh_buf_add(out, text, len);
        break;
    case HH_NORMALISE_REPLACE:
        if (s->regex) return replace_regex(s, scratch, text, len, out, err);
        return replace_string(s, text, len, out, err);
    }
    return HH_OK;
}

static bool is_ascii(const char *text, size_t n) {
    size_t i = 0;
    uint64_t eight;
    for (; n - i >= sizeof eight; i += sizeof eight) {
        memcpy(&eight, text + i, sizeof eight);
        if (eight & 0x8080808080808080u) return false;
    }
    for (; i < n; i++)
        if (text[i] & 0x80) return false;
    return true;
}

hh_code hh_normalise(const hh_normaliser *n, hh_regex_scratch *scratch, const char **out, size_t *out_len, hh_buf *room,
                     const char *text, size_t len, hh_error *err) {
    *out = text;
    *out_len = len;
    for (int i = 0; i < n->n_steps; i++) {
        if (n->steps[i].kind == HH_NORMALISE_UNICODE && is_ascii(*out, *out_len)) continue;
        hh_buf next = {0};
        hh_buf_puts(&next, "");
        hh_code code = run_step(&n->steps[i], scratch, *out, *out_len, &next, err);
        hh_buf_release(room);
        *room = next;
        HH_TRY(code);
        *out = room->data;
        *out_len = room->len;
    }
    return HH_OK;
}
