/* Walking a grammar byte by byte with sets of stacks; see grammar.h.
 *
 * A stack's top is always a byte range or nothing (the text may end): references are expanded as soon as they come up.
 * A reference at an alternative's end leaves no return position behind, so repetition does not deepen the stack.
 * Stack cells are shared and live as long as the state; equal cells are one, so that equal stacks are equal pointers. */
#include "text/grammar_rules.h"

#include <string.h>

int32_t hh_rule_new(hh_grammar *g) {
    if (g->n == g->capacity) {
        g->capacity = 2 * g->capacity + 32;
        g->rule = hh_realloc(g->rule, (size_t)g->capacity * sizeof *g->rule);
    }
    g->rule[g->n] = (hh_rule){0};
    return g->n++;
}

static void add(hh_grammar *g, int32_t rule, hh_symbol s) {
    hh_rule *r = &g->rule[rule];
    if (r->n == r->capacity) {
        r->capacity = 2 * r->capacity + 8;
        r->symbol = hh_realloc(r->symbol, (size_t)r->capacity * sizeof *r->symbol);
    }
    r->symbol[r->n++] = s;
}

void hh_rule_byte(hh_grammar *g, int32_t rule, uint8_t lo, uint8_t hi) {
    add(g, rule, (hh_symbol){.kind = HH_SYMBOL_BYTES, .lo = lo, .hi = hi});
}

void hh_rule_text(hh_grammar *g, int32_t rule, const char *text) {
    for (; *text; text++) hh_rule_byte(g, rule, (uint8_t)*text, (uint8_t)*text);
}

void hh_rule_refer(hh_grammar *g, int32_t rule, int32_t other) {
    add(g, rule, (hh_symbol){.kind = HH_SYMBOL_RULE, .rule = other});
}

void hh_rule_close(hh_grammar *g, int32_t rule) {
    add(g, rule, (hh_symbol){.kind = HH_SYMBOL_END});
    g->rule[rule].n_alternatives++;
}

int32_t hh_rule_repeat(hh_grammar *g, int32_t x, int64_t min, int64_t max) {
    int32_t tail = hh_rule_new(g); /* what may follow the required ones */
    if (max < 0) {
        hh_rule_refer(g, tail, x);
        hh_rule_refer(g, tail, tail);
        hh_rule_close(g, tail);
    }
    hh_rule_close(g, tail);
    for (int64_t i = min; i < max; i++) { /* (x (x ...)?)? */
        int32_t more = hh_rule_new(g);
        hh_rule_refer(g, more, x);
        hh_rule_refer(g, more, tail);
        hh_rule_close(g, more);
        hh_rule_close(g, more);
        tail = more;
    }
    int32_t all = hh_rule_new(g);
    for (int64_t i = 0; i < min; i++) hh_rule_refer(g, all, x);
    hh_rule_refer(g, all, tail);
    hh_rule_close(g, all);
    return all;
}

/* Which rules can be empty: as many passes as it takes. */
static void find_empty(const hh_grammar *g, bool *empty) {
    for (bool again = true; again;) {
        again = false;
        for (int32_t r = 0; r < g->n; r++) {
            bool so_far = true;
            for (int32_t i = 0; i < g->rule[r].n && !empty[r]; i++) {
                const hh_symbol *s = &g->rule[r].symbol[i];
                if (s->kind == HH_SYMBOL_END && so_far) empty[r] = again = true;
                so_far = s->kind == HH_SYMBOL_END || (so_far && s->kind == HH_SYMBOL_RULE && empty[s->rule]);
            }
        }
    }
}

/* seen: 0 not yet, 1 on the path, 2 done. */
static bool comes_back(const hh_grammar *g, const bool *empty, char *seen, int32_t r) {
    if (seen[r]) return seen[r] == 1;
    seen[r] = 1;
    bool first = true, back = false;
    for (int32_t i = 0; i < g->rule[r].n && !back; i++) {
        const hh_symbol *s = &g->rule[r].symbol[i];
        if (first && s->kind == HH_SYMBOL_RULE) back = comes_back(g, empty, seen, s->rule);
        first = s->kind == HH_SYMBOL_END || (first && s->kind == HH_SYMBOL_RULE && empty[s->rule]);
    }
    seen[r] = 2;
    return back;
}

bool hh_grammar_is_left_recursive(const hh_grammar *g) {
    bool *empty = hh_alloc((size_t)g->n * sizeof *empty), back = false;
    char *seen = hh_alloc((size_t)g->n);
    find_empty(g, empty);
    for (int32_t r = 0; r < g->n && !back; r++) back = comes_back(g, empty, seen, r);
    hh_free(empty);
    hh_free(seen);
    return back;
}

void hh_grammar_free(hh_grammar *g) {
    if (!g) return;
    for (int32_t i = 0; i < g->n; i++) hh_free(g->rule[i].symbol);
    hh_free(g->rule);
    hh_free(g);
}

typedef struct cell cell;
struct cell {
    const hh_symbol *at; /* what comes next: BYTES on top of a stack */
    const cell *below;   /* where to go on after this alternative; NULL: the text's end */
    cell *next;          /* in its bucket */
};

enum { BUCKETS = 4096, CELLS = 1024 };

typedef struct block {
    struct block *before;
    cell cell[CELLS];
} block;

typedef struct stack_set {
    const cell **top;
    int32_t n, capacity;
    bool end; /* the text may end here */
} stack_set;

/* A set that was met while many texts were tried, and where each byte leads from it: most bytes of most texts are met
 * in a few sets (inside of a string nearly always in one). */
typedef struct known known;
struct known {
    stack_set set;
    known *behind[256]; /* NULL: not tried yet; `dead`: nowhere */
    known *next;        /* in its bucket */
};
static known dead;

enum { KNOWN_BUCKETS = 256, MOST_KNOWN = 2048 };

/* Behind a byte of a walk: a known set, or when there are too many of those one of its own. */
typedef struct place {
    known *known;
    stack_set own;
} place;

struct hh_grammar_state {
    const hh_grammar *g;
    stack_set now, work[2];
    place *path; /* [n_path] behind each byte of a walk over many texts */
    size_t n_path;
    known *known[KNOWN_BUCKETS];
    int32_t n_known;
    cell *bucket[BUCKETS];
    block *blocks;
    int32_t used; /* cells of the newest block */
};

static const cell *intern(hh_grammar_state *s, const hh_symbol *at, const cell *below) {
    size_t b = (((uintptr_t)at >> 3) * 31 + ((uintptr_t)below >> 4) * 17) % BUCKETS;
    for (cell *c = s->bucket[b]; c; c = c->next)
        if (c->at == at && c->below == below) return c;
    if (!s->blocks || s->used == CELLS) {
        block *fresh = hh_alloc(sizeof *fresh);
        fresh->before = s->blocks;
        s->blocks = fresh;
        s->used = 0;
    }
    cell *c = &s->blocks->cell[s->used++];
    *c = (cell){at, below, s->bucket[b]};
    return s->bucket[b] = c;
}

static void put(stack_set *set, const cell *top) {
    for (int32_t i = 0; i < set->n; i++)
        if (set->top[i] == top) return;
    if (set->n == set->capacity) {
        set->capacity = 2 * set->capacity + 16;
        set->top = hh_realloc(set->top, (size_t)set->capacity * sizeof *set->top);
    }
    set->top[set->n++] = top;
}

/* Adds every stack in which the text can stand at `at`, with `below` to return to. */
static void expand(hh_grammar_state *s, stack_set *set, const hh_symbol *at, const cell *below) {
    while (at->kind == HH_SYMBOL_END) {
        if (!below) {
            set->end = true;
            return;
        }
        at = below->at;
        below = below->below;
    }
    if (at->kind == HH_SYMBOL_BYTES) {
        put(set, intern(s, at, below));
        return;
    }
    const hh_rule *r = &s->g->rule[at->rule];
    const cell *back = at[1].kind == HH_SYMBOL_END ? below : intern(s, at + 1, below);
    for (int32_t i = 0, a = 0; a < r->n_alternatives; a++) {
        expand(s, set, &r->symbol[i], back);
        while (r->symbol[i].kind != HH_SYMBOL_END) i++;
        i++;
    }
}

static void step(hh_grammar_state *s, const stack_set *from, stack_set *to, uint8_t byte) {
    to->n = 0;
    to->end = false;
    for (int32_t i = 0; i < from->n; i++) {
        const hh_symbol *at = from->top[i]->at;
        if (byte >= at->lo && byte <= at->hi) expand(s, to, at + 1, from->top[i]->below);
    }
}

/* The set behind the bytes, in one of the work sets; NULL: they do not fit. */
static stack_set *walk(hh_grammar_state *s, const char *bytes, size_t n) {
    const stack_set *from = &s->now;
    stack_set *to = NULL;
    for (size_t i = 0; i < n; i++) {
        to = &s->work[i % 2];
        step(s, from, to, (uint8_t)bytes[i]);
        if (!to->n && !(to->end && i + 1 == n)) return NULL;
        from = to;
    }
    return to;
}

hh_grammar_state *hh_grammar_start(const hh_grammar *g) {
    static const hh_symbol start[] = {{.kind = HH_SYMBOL_RULE, .rule = 0}, {.kind = HH_SYMBOL_END}};
    hh_grammar_state *s = hh_alloc(sizeof *s);
    s->g = g;
    expand(s, &s->now, start, NULL);
    return s;
}

static void forget(hh_grammar_state *s) {
    for (int b = 0; b < KNOWN_BUCKETS; b++)
        for (known *k = s->known[b]; k;) {
            known *next = k->next;
            hh_free(k->set.top);
            hh_free(k);
            k = next;
        }
    memset(s->known, 0, sizeof s->known);
    s->n_known = 0;
}

void hh_grammar_state_free(hh_grammar_state *s) {
    if (!s) return;
    for (block *b = s->blocks; b;) {
        block *before = b->before;
        hh_free(b);
        b = before;
    }
    hh_free(s->now.top);
    hh_free(s->work[0].top);
    hh_free(s->work[1].top);
    for (size_t i = 0; i < s->n_path; i++) hh_free(s->path[i].own.top);
    forget(s);
    hh_free(s->path);
    hh_free(s);
}

bool hh_grammar_fits(hh_grammar_state *s, const char *bytes, size_t n) {
    return n == 0 || walk(s, bytes, n) != NULL;
}

bool hh_grammar_take(hh_grammar_state *s, const char *bytes, size_t n) {
    if (n == 0) return true;
    stack_set *to = walk(s, bytes, n);
    if (!to) return false;
    stack_set old = s->now;
    s->now = *to;
    *to = old;
    return true;
}

static size_t common_bytes(hh_grammar_text a, hh_grammar_text b) {
    const size_t most = a.n < b.n ? a.n : b.n;
    size_t n = 0;
    while (n < most && a.bytes[n] == b.bytes[n]) n++;
    return n;
}

/* Room for `depth` places. */
static void deepen(hh_grammar_state *s, size_t depth) {
    if (depth <= s->n_path) return;
    s->path = hh_realloc(s->path, depth * sizeof *s->path);
    memset(s->path + s->n_path, 0, (depth - s->n_path) * sizeof *s->path);
    s->n_path = depth;
}

/* The set as a known one; NULL: there are too many. */
static known *know(hh_grammar_state *s, const stack_set *set) {
    uintptr_t hash = set->end;
    for (int32_t i = 0; i < set->n; i++) hash = hash * 31 + ((uintptr_t)set->top[i] >> 4);
    known **bucket = &s->known[hash % KNOWN_BUCKETS];
    const size_t bytes = (size_t)set->n * sizeof *set->top;
    for (known *k = *bucket; k; k = k->next)
        if (k->set.n == set->n && k->set.end == set->end && (!bytes || !memcmp(k->set.top, set->top, bytes))) return k;
    if (s->n_known == MOST_KNOWN) return NULL;
    known *k = hh_alloc(sizeof *k);
    k->set = (stack_set){hh_alloc(bytes), set->n, set->n, set->end};
    if (bytes) memcpy(k->set.top, set->top, bytes);
    k->next = *bucket;
    s->n_known++;
    return *bucket = k;
}

/* Sets *to to where `byte` leads from the place before; false: nowhere. */
static bool advance(hh_grammar_state *s, const place *from, place *to, uint8_t byte) {
    known **behind = from->known ? &from->known->behind[byte] : NULL;
    if (behind && *behind) {
        to->known = *behind;
        return *behind != &dead;
    }
    step(s, from->known ? &from->known->set : &from->own, &to->own, byte);
    const bool alive = to->own.n || to->own.end;
    to->known = alive ? know(s, &to->own) : &dead;
    if (behind) *behind = to->known;
    return alive;
}

static const stack_set *set_at(const place *p) {
    return p->known ? &p->known->set : &p->own;
}

void hh_grammar_fit_sorted(hh_grammar_state *s, const hh_grammar_text *text, int64_t n, bool *fits) {
    size_t alive = 0; /* bytes of the text before that the grammar took; path[i + 1] is behind byte i */
    if (s->n_known == MOST_KNOWN) forget(s);
    deepen(s, 1);
    s->path[0].known = know(s, &s->now);
    for (int64_t t = 0; t < n; t++) {
        const size_t common = t ? common_bytes(text[t - 1], text[t]) : 0;
        fits[t] = false;
        if (common > alive) continue; /* fails where the one before did */
        alive = common;
        deepen(s, text[t].n + 1);
        while (alive < text[t].n) {
            const place *to = &s->path[alive + 1];
            if (!advance(s, &s->path[alive], &s->path[alive + 1], (uint8_t)text[t].bytes[alive])) break;
            if (!set_at(to)->n && alive + 1 < text[t].n) break; /* an end, and more bytes */
            alive++;
        }
        fits[t] = text[t].n > 0 && alive == text[t].n;
    }
}

bool hh_grammar_may_end(const hh_grammar_state *s) {
    return s->now.end;
}

bool hh_grammar_must_end(const hh_grammar_state *s) {
    return s->now.end && !s->now.n;
}
