/* Chat prompts; see tokenizer.h.
 *
 * Templates are programs in Jinja; instead of running them, the three families that matter here are recognised by the
 * marks that decide what they render, and written out. A template with a mark that would change the prompt is refused.
 */
#include "text/parts.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include "format/quote.h"

#include <string.h>
#include <time.h>

typedef enum chat_family { CHAT_ML, CHAT_QWEN3, CHAT_LLAMA3 } chat_family;

typedef struct chat_format {
    chat_family family;
    hh_buf system;     /* CHAT_ML: the system message when the first turn is none; empty: none */
    hh_buf answer;     /* what follows "assistant" at the end: a new line, for some models also <think> */
    bool dated, today; /* CHAT_LLAMA3: the system message begins with dates (3.1); the date is today's (3.2) */
} chat_format;

/* The rest of the string of the template in which `s` stands, from s + skip on, as Jinja reads it: up to its closing
 * quote, or to `end`; false when that does not come. */
static bool read_literal(const char *template, const char *s, size_t skip, const char *end, hh_buf *out) {
    const char *open = s;
    while (open > template && *open != '\'' && *open != '"') open--;
    hh_buf_clear(out);
    for (s += skip; *s; s++) {
        if (end && strncmp(s, end, strlen(end)) == 0) return true;
        if (*s == *open) return !end;
        char c = *s;
        if (c == '\\' && s[1]) {
            c = *++s;
            if (c == 'n') c = '\n';
            if (c == 't') c = '\t';
        }
        hh_buf_add(out, &c, 1);
    }
    return false;
}

/* "<|im_start|>system", a new line and literal text up to "<|im_end|>": what is said when the user gives no system
 * message. */
static void find_default_system(const char *template, hh_buf *out) {
    static const char mark[] = "<|im_start|>system";
    for (const char *s = template; (s = strstr(s, mark)); s++) {
        if (!read_literal(template, s, sizeof mark - 1, "<|im_end|>", out) || out->len < 2 || out->data[0] != '\n')
            continue;
        memmove(out->data, out->data + 1, out->len); /* with the NUL */
        out->len--;
        return;
    }
    hh_buf_clear(out);
}

static bool find_answer(const char *template, hh_buf *out) {
    static const char mark[] = "<|im_start|>assistant";
    const char *last = NULL;
    for (const char *s = template; (s = strstr(s, mark)); s++) last = s;
    return last && read_literal(template, last, sizeof mark - 1, NULL, out) && out->len && out->data[0] == '\n';
}

static bool has(const char *template, const char *mark) {
    return strstr(template, mark) != NULL;
}

/* The first of the marks in the template; NULL: none. */
static const char *find_any(const char *template, const char *const *marks) {
    for (; *marks; marks++)
        if (has(template, *marks)) return *marks;
    return NULL;
}

static hh_code refuse(const hh_tokenizer *t, const char *why, hh_error *err) {
    hh_quote q;
    return hh_fail(err, HH_EUNSUPPORTED, "%s: the chat template %s%s; ChatML and Llama-3 templates are known", t->path,
                   hh_quoted(&q, t->chat_template, strlen(t->chat_template)), why);
}

static hh_code refuse_mark(const hh_tokenizer *t, const char *mark, hh_error *err) {
    char *why = hh_sprintf(" has '%s', which is not supported", mark);
    hh_code code = refuse(t, why, err);
    hh_free(why);
    return code;
}

static hh_code recognise(chat_format *f, const hh_tokenizer *t, hh_error *err) {
    static const char *const llama_unknown[] = {"</think>", "<|python_start|>", NULL};
    static const char *const ml_unknown[] = {
        "<|im_sep|>", "strftime_now", "bos_token", "raise_exception", "enable_thinking is true", "Knowledge Cutoff",
        "| trim",     "|trim",        NULL};
    const char *s = t->chat_template, *mark;
    if (!s)
        return hh_fail(err, HH_EUNSUPPORTED, "%s: there is no chat template with this tokenizer; use a plain prompt",
                       t->path);
    if (has(s, "<|start_header_id|>") && has(s, "<|end_header_id|>") && has(s, "<|eot_id|>")) {
        if ((mark = find_any(s, llama_unknown))) return refuse_mark(t, mark, err);
        f->family = CHAT_LLAMA3;
        f->dated = has(s, "Cutting Knowledge Date: December 2023") && has(s, "Today Date: ");
        f->today = f->dated && has(s, "strftime_now");
        return HH_OK;
    }
    if (!has(s, "<|im_start|>' + message") && !has(s, "<|im_start|>\" + message"))
        return refuse(t, " is not known", err);
    if ((mark = find_any(s, ml_unknown))) return refuse_mark(t, mark, err);
    if (!find_answer(s, &f->answer)) return refuse(t, " does not say how an answer begins", err);
    f->family = has(s, "</think>") ? CHAT_QWEN3 : CHAT_ML;
    if (f->family == CHAT_QWEN3 && !(has(s, "loop.index0 > ns.last_query_index") && has(s, "content.lstrip('\\n')")))
        return refuse_mark(t, "</think>", err);
    find_default_system(s, &f->system);
    return HH_OK;
}

/* A prompt that is being put together: text runs between special tokens. */
typedef struct prompt {
    const hh_tokenizer *t;
    hh_buf text;
    hh_ids *out;
    hh_error *err;
} prompt;

static hh_code flush_text(prompt *p) {
    hh_code code = hh_tokenizer_encode(p->t, p->text.data, p->text.len, HH_ENCODE_PLAIN, p->out, p->err);
    hh_buf_clear(&p->text);
    return code;
}

static hh_code add_special(prompt *p, const char *token) {
    int32_t id = hh_tokenizer_id(p->t, token);
    if (id < 0)
        return hh_fail(p->err, HH_EFORMAT, "%s: the chat template needs the token %s, which is missing", p->t->path,
                       token);
    HH_TRY(flush_text(p));
    hh_ids_push(p->out, id);
    return HH_OK;
}

static bool is_python_space(int32_t cp) {
    return hh_char_class(cp) == HH_SPACE || (cp >= 0x1c && cp <= 0x1f);
}

/* Text without white space at its ends. */
static void add_trimmed(prompt *p, const char *s) {
    size_t n = strlen(s), lo = 0;
    int32_t cp;
    while (lo < n) {
        size_t len = (size_t)hh_utf8_next(s + lo, n - lo, &cp);
        if (!is_python_space(cp)) break;
        lo += len;
    }
    while (n > lo) {
        size_t before = hh_utf8_back(s, n, &cp);
        if (!is_python_space(cp)) break;
        n = before;
    }
    hh_buf_add(&p->text, s + lo, n - lo);
}

static hh_code begin_chatml(prompt *p, const char *role) {
    HH_TRY(add_special(p, "<|im_start|>"));
    hh_buf_printf(&p->text, "%s\n", role);
    return HH_OK;
}

static hh_code end_chatml(prompt *p) {
    HH_TRY(add_special(p, "<|im_end|>"));
    hh_buf_puts(&p->text, "\n");
    return HH_OK;
}

static void add_stripped(hh_buf *out, const char *s, size_t n, bool left, bool right) {
    while (left && n && *s == '\n') s++, n--;
    while (right && n && s[n - 1] == '\n') n--;
    hh_buf_add(out, s, n);
}

static const char *find_last(const char *s, size_t n, const char *what) {
    const char *last = NULL;
    size_t len = strlen(what);
    for (const char *at = s; (at = memmem(at, n - (size_t)(at - s), what, len)); at++) last = at;
    return last;
}

/* Qwen3: the thoughts of an earlier answer are dropped; those after the last question are kept, also when there are
 * none. */
static void add_qwen3_answer(prompt *p, const char *content, bool after_question, bool last) {
    static const char open[] = "<think>", close[] = "</think>";
    const char *thought = "", *said = content, *end = strstr(content, close);
    size_t n_thought = 0;
    bool split = end != NULL;
    if (split) {
        size_t n = (size_t)(end - content);
        while (n && content[n - 1] == '\n') n--;
        const char *begin = find_last(content, n, open);
        thought = begin ? begin + sizeof open - 1 : content;
        n_thought = n - (size_t)(thought - content);
        said = find_last(content, strlen(content), close) + sizeof close - 1;
        while (n_thought && *thought == '\n') thought++, n_thought--;
    }
    bool shown = after_question && (last || n_thought);
    if (shown) {
        hh_buf_puts(&p->text, "<think>\n");
        add_stripped(&p->text, thought, n_thought, true, true);
        hh_buf_puts(&p->text, "\n</think>\n\n");
    }
    add_stripped(&p->text, said, strlen(said), split || shown, false);
}

static bool is_tool_response(const char *s) {
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    size_t n = strlen(s);
    return strncmp(s, open, sizeof open - 1) == 0 && n >= sizeof close - 1 &&
           strcmp(s + n - sizeof close + 1, close) == 0;
}

static hh_code render_chatml(prompt *p, const chat_format *f, const hh_chat_turn *turns, int64_t n) {
    int64_t last_question = n - 1;
    for (int64_t i = n - 1; i >= 0; i--) {
        if (strcmp(turns[i].role, "user") != 0 || is_tool_response(turns[i].content)) continue;
        last_question = i;
        break;
    }
    if (f->system.len && strcmp(turns[0].role, "system") != 0) {
        HH_TRY(begin_chatml(p, "system"));
        hh_buf_add(&p->text, f->system.data, f->system.len);
        HH_TRY(end_chatml(p));
    }
    for (int64_t i = 0; i < n; i++) {
        HH_TRY(begin_chatml(p, turns[i].role));
        if (f->family == CHAT_QWEN3 && strcmp(turns[i].role, "assistant") == 0)
            add_qwen3_answer(p, turns[i].content, i > last_question, i == n - 1);
        else
            hh_buf_puts(&p->text, turns[i].content);
        HH_TRY(end_chatml(p));
    }
    HH_TRY(add_special(p, "<|im_start|>"));
    hh_buf_puts(&p->text, "assistant");
    hh_buf_add(&p->text, f->answer.data, f->answer.len);
    return flush_text(p);
}

static hh_code begin_llama(prompt *p, const char *role) {
    HH_TRY(add_special(p, "<|start_header_id|>"));
    hh_buf_puts(&p->text, role);
    HH_TRY(add_special(p, "<|end_header_id|>"));
    hh_buf_puts(&p->text, "\n\n");
    return HH_OK;
}

static void add_date(prompt *p, bool today) {
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    struct tm day = {.tm_mday = 26, .tm_mon = 6, .tm_year = 124};
    time_t now = time(NULL);
    if (today) localtime_r(&now, &day);
    hh_buf_printf(&p->text, "Cutting Knowledge Date: December 2023\nToday Date: %02d %s %d\n\n", day.tm_mday,
                  months[day.tm_mon], day.tm_year + 1900);
}

static hh_code render_llama3(prompt *p, const chat_format *f, const hh_chat_turn *turns, int64_t n) {
    if (p->t->bos >= 0) hh_ids_push(p->out, p->t->bos);
    int64_t first = 0;
    if (f->dated) {
        HH_TRY(begin_llama(p, "system"));
        add_date(p, f->today);
        if (strcmp(turns[0].role, "system") == 0) add_trimmed(p, turns[first++].content);
        HH_TRY(add_special(p, "<|eot_id|>"));
    }
    for (int64_t i = first; i < n; i++) {
        HH_TRY(begin_llama(p, turns[i].role));
        add_trimmed(p, turns[i].content);
        HH_TRY(add_special(p, "<|eot_id|>"));
    }
    HH_TRY(begin_llama(p, "assistant"));
    return flush_text(p);
}

static hh_code check_turns(const hh_chat_turn *turns, int64_t n, hh_error *err) {
    if (n < 1) return hh_fail(err, HH_EINVAL, "a chat needs at least one turn");
    for (int64_t i = 0; i < n; i++) {
        const char *role = turns[i].role;
        if (strcmp(role, "system") && strcmp(role, "user") && strcmp(role, "assistant"))
            return hh_fail(err, HH_EINVAL, "turn %lld: the role '%.40s' is none of system, user, assistant",
                           (long long)i, role);
    }
    return HH_OK;
}

hh_code hh_tokenizer_chat(const hh_tokenizer *t, const hh_chat_turn *turns, int64_t n, hh_ids *out, hh_error *err) {
    HH_TRY(check_turns(turns, n, err));
    chat_format f = {0};
    prompt p = {.t = t, .out = out, .err = err};
    int64_t before = out->len;
    hh_buf_puts(&p.text, "");
    hh_code code = recognise(&f, t, err);
    if (code == HH_OK)
        code = f.family == CHAT_LLAMA3 ? render_llama3(&p, &f, turns, n) : render_chatml(&p, &f, turns, n);
    if (code != HH_OK) out->len = before;
    hh_buf_release(&p.text);
    hh_buf_release(&f.system);
    hh_buf_release(&f.answer);
    return code;
}
