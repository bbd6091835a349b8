/* From a JSON schema to the rules of its texts; see grammar.h. */
#include "text/grammar_rules.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MOST_REPEATS 2048 /* of one element: a rule each */

typedef struct reference {
    char *name;
    int32_t rule;
} reference;

typedef struct compiler {
    hh_grammar *g;
    const json_t *root;
    hh_error *err;
    int32_t space, string, character, number, integer, value, object, array; /* -1: not made yet */
    reference *known;                                                        /* of $ref */
    int64_t n_known;
    int depth;
} compiler;

static hh_code compile(compiler *c, const json_t *schema, int32_t *out);

/* -- JSON itself -- */

/* "", one space, or a line break and some indentation: what models write. */
static int32_t space_rule(compiler *c) {
    hh_grammar *g = c->g;
    if (c->space >= 0) return c->space;
    int32_t blank = hh_rule_new(g);
    hh_rule_byte(g, blank, ' ', ' ');
    hh_rule_close(g, blank);
    hh_rule_byte(g, blank, '\t', '\t');
    hh_rule_close(g, blank);
    int32_t indent = hh_rule_repeat(g, blank, 0, 32);
    c->space = hh_rule_new(g);
    hh_rule_close(g, c->space);
    hh_rule_text(g, c->space, " ");
    hh_rule_close(g, c->space);
    hh_rule_text(g, c->space, "\n");
    hh_rule_refer(g, c->space, indent);
    hh_rule_close(g, c->space);
    return c->space;
}

static void tail_bytes(hh_grammar *g, int32_t rule, int n) {
    for (int i = 0; i < n; i++) hh_rule_byte(g, rule, 0x80, 0xbf);
    hh_rule_close(g, rule);
}

/* One character of a string: UTF-8 as RFC 3629 has it, or an escape. */
static int32_t character_rule(compiler *c) {
    static const uint8_t two[][2] = {{0xe1, 0xec}, {0xee, 0xef}};
    hh_grammar *g = c->g;
    if (c->character >= 0) return c->character;
    int32_t r = hh_rule_new(g), hex = hh_rule_new(g);
    static const char digits[][2] = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
    for (int i = 0; i < 3; i++) {
        hh_rule_byte(g, hex, (uint8_t)digits[i][0], (uint8_t)digits[i][1]);
        hh_rule_close(g, hex);
    }
    static const uint8_t plain[][2] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7e}};
    for (int i = 0; i < 3; i++) {
        hh_rule_byte(g, r, plain[i][0], plain[i][1]);
        hh_rule_close(g, r);
    }
    for (const char *e = "\"\\/bfnrt"; *e; e++) {
        hh_rule_text(g, r, "\\");
        hh_rule_byte(g, r, (uint8_t)*e, (uint8_t)*e);
        hh_rule_close(g, r);
    }
    hh_rule_text(g, r, "\\u");
    for (int i = 0; i < 4; i++) hh_rule_refer(g, r, hex);
    hh_rule_close(g, r);
    hh_rule_byte(g, r, 0xc2, 0xdf);
    tail_bytes(g, r, 1);
    hh_rule_byte(g, r, 0xe0, 0xe0);
    hh_rule_byte(g, r, 0xa0, 0xbf);
    tail_bytes(g, r, 1);
    for (int i = 0; i < 2; i++) {
        hh_rule_byte(g, r, two[i][0], two[i][1]);
        tail_bytes(g, r, 2);
    }
    hh_rule_byte(g, r, 0xed, 0xed);
    hh_rule_byte(g, r, 0x80, 0x9f);
    tail_bytes(g, r, 1);
    hh_rule_byte(g, r, 0xf0, 0xf0);
    hh_rule_byte(g, r, 0x90, 0xbf);
    tail_bytes(g, r, 2);
    hh_rule_byte(g, r, 0xf1, 0xf3);
    tail_bytes(g, r, 3);
    hh_rule_byte(g, r, 0xf4, 0xf4);
    hh_rule_byte(g, r, 0x80, 0x8f);
    tail_bytes(g, r, 2);
    return c->character = r;
}

static int32_t string_of(compiler *c, int64_t min, int64_t max) {
    hh_grammar *g = c->g;
    int32_t characters = hh_rule_repeat(g, character_rule(c), min, max), r = hh_rule_new(g);
    hh_rule_text(g, r, "\"");
    hh_rule_refer(g, r, characters);
    hh_rule_text(g, r, "\"");
    hh_rule_close(g, r);
    return r;
}

static int32_t string_rule(compiler *c) {
    return c->string >= 0 ? c->string : (c->string = string_of(c, 0, -1));
}

static int32_t digit_rule(hh_grammar *g, char lo) {
    int32_t d = hh_rule_new(g);
    hh_rule_byte(g, d, (uint8_t)lo, '9');
    hh_rule_close(g, d);
    return d;
}

static int32_t integer_rule(compiler *c) {
    hh_grammar *g = c->g;
    if (c->integer >= 0) return c->integer;
    int32_t r = hh_rule_new(g), rest = hh_rule_repeat(g, digit_rule(g, '0'), 0, 17);
    for (int sign = 0; sign < 2; sign++) {
        if (!sign) {
            hh_rule_text(g, r, "0");
            hh_rule_close(g, r);
        }
        if (sign) hh_rule_text(g, r, "-");
        hh_rule_byte(g, r, '1', '9');
        hh_rule_refer(g, r, rest);
        hh_rule_close(g, r);
    }
    return c->integer = r;
}

static int32_t number_rule(compiler *c) {
    hh_grammar *g = c->g;
    if (c->number >= 0) return c->number;
    int32_t digits = hh_rule_repeat(g, digit_rule(g, '0'), 1, 17), whole = hh_rule_new(g), fraction = hh_rule_new(g);
    int32_t exponent = hh_rule_new(g), r = hh_rule_new(g);
    hh_rule_refer(g, whole, integer_rule(c));
    hh_rule_close(g, whole);
    hh_rule_text(g, whole, "-0");
    hh_rule_close(g, whole);
    hh_rule_close(g, fraction);
    hh_rule_text(g, fraction, ".");
    hh_rule_refer(g, fraction, digits);
    hh_rule_close(g, fraction);
    hh_rule_close(g, exponent);
    int32_t power = hh_rule_repeat(g, digit_rule(g, '0'), 1, 2);
    for (const char *e = "eE"; *e; e++)
        for (int sign = 0; sign < 3; sign++) {
            hh_rule_byte(g, exponent, (uint8_t)*e, (uint8_t)*e);
            if (sign) hh_rule_text(g, exponent, sign == 1 ? "+" : "-");
            hh_rule_refer(g, exponent, power);
            hh_rule_close(g, exponent);
        }
    hh_rule_refer(g, r, whole);
    hh_rule_refer(g, r, fraction);
    hh_rule_refer(g, r, exponent);
    hh_rule_close(g, r);
    return c->number = r;
}

static int32_t words_rule(hh_grammar *g, const char *a, const char *b) {
    int32_t r = hh_rule_new(g);
    hh_rule_text(g, r, a);
    hh_rule_close(g, r);
    if (b) {
        hh_rule_text(g, r, b);
        hh_rule_close(g, r);
    }
    return r;
}

/* open (item (, item)*)? close, with `min` to `max` items. */
static int32_t list_rule(compiler *c, const char *open, int32_t item, const char *close, int64_t min, int64_t max) {
    hh_grammar *g = c->g;
    int32_t space = space_rule(c), more = hh_rule_new(g), r = hh_rule_new(g);
    hh_rule_text(g, more, ",");
    hh_rule_refer(g, more, space);
    hh_rule_refer(g, more, item);
    hh_rule_refer(g, more, space);
    hh_rule_close(g, more);
    if (max != 0) {
        int32_t others = hh_rule_repeat(g, more, min > 1 ? min - 1 : 0, max < 0 ? -1 : max - 1);
        hh_rule_text(g, r, open);
        hh_rule_refer(g, r, space);
        hh_rule_refer(g, r, item);
        hh_rule_refer(g, r, space);
        hh_rule_refer(g, r, others);
        hh_rule_text(g, r, close);
        hh_rule_close(g, r);
    }
    if (min == 0) {
        hh_rule_text(g, r, open);
        hh_rule_refer(g, r, space);
        hh_rule_text(g, r, close);
        hh_rule_close(g, r);
    }
    return r;
}

/* key : value */
static int32_t member_rule(compiler *c, int32_t key, int32_t value) {
    hh_grammar *g = c->g;
    int32_t r = hh_rule_new(g), space = space_rule(c);
    hh_rule_refer(g, r, key);
    hh_rule_refer(g, r, space);
    hh_rule_text(g, r, ":");
    hh_rule_refer(g, r, space);
    hh_rule_refer(g, r, value);
    hh_rule_close(g, r);
    return r;
}

/* Any JSON value; objects and arrays of such. */
static int32_t value_rule(compiler *c) {
    hh_grammar *g = c->g;
    if (c->value >= 0) return c->value;
    c->value = hh_rule_new(g);
    c->object = list_rule(c, "{", member_rule(c, string_rule(c), c->value), "}", 0, -1);
    c->array = list_rule(c, "[", c->value, "]", 0, -1);
    int32_t words = words_rule(g, "true", "false"), null = words_rule(g, "null", NULL);
    const int32_t kinds[] = {c->object, c->array, string_rule(c), number_rule(c), words, null};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        hh_rule_refer(g, c->value, kinds[i]);
        hh_rule_close(g, c->value);
    }
    return c->value;
}

/* -- the schema -- */

static hh_code unsupported(compiler *c, const char *what, const char *why) {
    return hh_fail(c->err, HH_EUNSUPPORTED, "JSON schema: '%s' %s", what, why);
}

static hh_code read_count(compiler *c, const json_t *schema, const char *key, int64_t fallback, int64_t *out) {
    const json_t *v = json_object_get(schema, key);
    *out = fallback;
    if (!v) return HH_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return hh_fail(c->err, HH_EFORMAT, "JSON schema: '%s' must be a whole number", key);
    *out = json_integer_value(v);
    return *out > MOST_REPEATS ? unsupported(c, key, "is larger than 2048") : HH_OK;
}

static hh_code check_range(compiler *c, const char *what, int64_t min, int64_t max) {
    if (max >= 0 && max < min) return hh_fail(c->err, HH_EFORMAT, "JSON schema: no %s fits", what);
    return HH_OK;
}

static hh_code literal(compiler *c, int32_t rule, const json_t *v) {
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return unsupported(c, "enum", "holds text that is not UTF-8");
    hh_rule_text(c->g, rule, text);
    hh_rule_close(c->g, rule);
    free(text);
    return HH_OK;
}

static bool is_required(const json_t *schema, const char *name) {
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(schema, "required"), i,
                       one) if (json_is_string(one) && !strcmp(json_string_value(one), name)) return true;
    return false;
}

/* What may come at a member's place: the member, behind a comma when `comma`, and then `after`; or `without` it (-1: it must
 * be there). */
static int32_t place_rule(compiler *c, bool comma, int32_t member, int32_t after, int32_t without) {
    hh_grammar *g = c->g;
    int32_t r = hh_rule_new(g), space = space_rule(c);
    if (comma) {
        hh_rule_text(g, r, ",");
        hh_rule_refer(g, r, space);
    }
    hh_rule_refer(g, r, member);
    hh_rule_refer(g, r, space);
    hh_rule_refer(g, r, after);
    hh_rule_close(g, r);
    if (without >= 0) {
        hh_rule_refer(g, r, without);
        hh_rule_close(g, r);
    }
    return r;
}

/* How an object goes on where nothing came before (first), and where something did (later). */
typedef struct rest {
    int32_t first, later;
} rest;

/* Members that the schema does not name: as many as one likes, or none. */
static hh_code rest_without_names(compiler *c, const json_t *more, rest *out) {
    hh_grammar *g = c->g;
    int32_t nothing = hh_rule_new(g), value;
    hh_rule_close(g, nothing);
    *out = (rest){nothing, nothing};
    if (!more || json_is_false(more)) return HH_OK;
    HH_TRY(compile(c, more, &value));
    int32_t member = member_rule(c, string_rule(c), value);
    int32_t another = place_rule(c, true, member, nothing, -1);
    out->later = hh_rule_repeat(g, another, 0, -1);
    out->first = place_rule(c, false, member, out->later, nothing);
    return HH_OK;
}

/* Puts a named property before what follows it. */
static hh_code add_property(compiler *c, const char *key, const json_t *schema, bool required, rest *r) {
    int32_t quoted = hh_rule_new(c->g), value;
    json_t *word = json_string(key);
    hh_code code = literal(c, quoted, word);
    json_decref(word);
    HH_TRY(code);
    HH_TRY(compile(c, schema, &value));
    int32_t member = member_rule(c, quoted, value);
    int32_t first = place_rule(c, false, member, r->later, required ? -1 : r->first);
    int32_t later = place_rule(c, true, member, r->later, required ? -1 : r->later);
    *r = (rest){first, later};
    return HH_OK;
}

/* Properties in the schema's order, built from the last. */
static hh_code object_schema(compiler *c, const json_t *schema, int32_t *out) {
    hh_grammar *g = c->g;
    const json_t *properties = json_object_get(schema, "properties"),
                 *more = json_object_get(schema, "additionalProperties");
    size_t n = json_object_size(properties), i = 0;
    if (!n && !json_object_get(schema, "required") && (!more || json_is_true(more))) {
        value_rule(c);
        *out = c->object;
        return HH_OK;
    }
    rest r;
    HH_TRY(rest_without_names(c, more, &r));
    const char **key = hh_alloc((n + 1) * sizeof *key), *name;
    json_t *one;
    hh_code code = HH_OK;
    json_object_foreach((json_t *)properties, name, one) key[i++] = name;
    while (i-- > 0 && code == HH_OK)
        code = add_property(c, key[i], json_object_get(properties, key[i]), is_required(schema, key[i]), &r);
    hh_free(key);
    HH_TRY(code);
    *out = hh_rule_new(g);
    hh_rule_text(g, *out, "{");
    hh_rule_refer(g, *out, space_rule(c));
    hh_rule_refer(g, *out, r.first);
    hh_rule_text(g, *out, "}");
    hh_rule_close(g, *out);
    return HH_OK;
}

static hh_code array_schema(compiler *c, const json_t *schema, int32_t *out) {
    const json_t *items = json_object_get(schema, "items");
    int64_t min, max;
    int32_t item;
    HH_TRY(read_count(c, schema, "minItems", 0, &min));
    HH_TRY(read_count(c, schema, "maxItems", -1, &max));
    HH_TRY(check_range(c, "array", min, max));
    if (items)
        HH_TRY(compile(c, items, &item));
    else
        item = value_rule(c);
    *out = list_rule(c, "[", item, "]", min, max);
    return HH_OK;
}

static hh_code string_schema(compiler *c, const json_t *schema, int32_t *out) {
    int64_t min, max;
    HH_TRY(read_count(c, schema, "minLength", 0, &min));
    HH_TRY(read_count(c, schema, "maxLength", -1, &max));
    HH_TRY(check_range(c, "string", min, max));
    *out = min || max >= 0 ? string_of(c, min, max) : string_rule(c);
    return HH_OK;
}

static hh_code typed_schema(compiler *c, const json_t *schema, const char *type, int32_t *out) {
    if (!strcmp(type, "object")) return object_schema(c, schema, out);
    if (!strcmp(type, "array")) return array_schema(c, schema, out);
    if (!strcmp(type, "string")) return string_schema(c, schema, out);
    *out = !strcmp(type, "integer")   ? integer_rule(c)
           : !strcmp(type, "number")  ? number_rule(c)
           : !strcmp(type, "boolean") ? words_rule(c->g, "true", "false")
           : !strcmp(type, "null")    ? words_rule(c->g, "null", NULL)
                                      : -1;
    return *out >= 0 ? HH_OK : hh_fail(c->err, HH_EFORMAT, "JSON schema: there is no type '%.100s'", type);
}

static hh_code alternatives(compiler *c, const json_t *list, const char *key, int32_t *out) {
    size_t i;
    json_t *one;
    if (!json_array_size(list)) return hh_fail(c->err, HH_EFORMAT, "JSON schema: '%s' must be a list of schemas", key);
    *out = hh_rule_new(c->g);
    json_array_foreach(list, i, one) {
        int32_t rule;
        HH_TRY(compile(c, one, &rule));
        hh_rule_refer(c->g, *out, rule);
        hh_rule_close(c->g, *out);
    }
    return HH_OK;
}

/* "#/$defs/name": a path of keys from the root. */
static const json_t *resolve(const compiler *c, const char *path) {
    const json_t *at = c->root;
    if (strncmp(path, "#", 1)) return NULL;
    for (path++; *path == '/' && at;) {
        size_t len = strcspn(++path, "/");
        char *key = hh_sprintf("%.*s", (int)len, path);
        at = json_object_get(at, key);
        hh_free(key);
        path += len;
    }
    return *path ? NULL : at;
}

static hh_code reference_schema(compiler *c, const char *path, int32_t *out) {
    for (int64_t i = 0; i < c->n_known; i++)
        if (!strcmp(c->known[i].name, path)) {
            *out = c->known[i].rule;
            return HH_OK;
        }
    const json_t *schema = resolve(c, path);
    if (!schema) return hh_fail(c->err, HH_EUNSUPPORTED, "JSON schema: '%.200s' refers to nothing in the schema", path);
    int32_t inner;
    *out = hh_rule_new(c->g);
    c->known = hh_realloc(c->known, (size_t)(c->n_known + 1) * sizeof *c->known);
    c->known[c->n_known++] = (reference){hh_strdup(path), *out};
    HH_TRY(compile(c, schema, &inner));
    hh_rule_refer(c->g, *out, inner);
    hh_rule_close(c->g, *out);
    return HH_OK;
}

static hh_code check_keywords(compiler *c, const json_t *schema) {
    static const char *const known[] = {"type",       "properties",  "required",  "additionalProperties",
                                        "items",      "minItems",    "maxItems",  "minLength",
                                        "maxLength",  "enum",        "const",     "anyOf",
                                        "oneOf",      "$ref",        "$defs",     "definitions",
                                        "title",      "description", "default",   "examples",
                                        "$schema",    "$id",         "$comment",  "format",
                                        "deprecated", "readOnly",    "writeOnly", "strict",
                                        "name"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known && !found; i++) found = !strcmp(key, known[i]);
        if (!found) return unsupported(c, key, "is not a keyword that the grammar knows");
    }
    return HH_OK;
}

static hh_code compile_object(compiler *c, const json_t *schema, int32_t *out) {
    const json_t *type = json_object_get(schema, "type"), *list, *v;
    size_t i;
    json_t *one;
    HH_TRY(check_keywords(c, schema));
    if ((v = json_object_get(schema, "$ref"))) {
        if (!json_is_string(v)) return hh_fail(c->err, HH_EFORMAT, "JSON schema: '$ref' must be text");
        return reference_schema(c, json_string_value(v), out);
    }
    if ((v = json_object_get(schema, "const"))) {
        *out = hh_rule_new(c->g);
        return literal(c, *out, v);
    }
    if ((list = json_object_get(schema, "enum"))) {
        if (!json_array_size(list)) return hh_fail(c->err, HH_EFORMAT, "JSON schema: 'enum' must be a list of values");
        *out = hh_rule_new(c->g);
        json_array_foreach(list, i, one) HH_TRY(literal(c, *out, one));
        return HH_OK;
    }
    if ((list = json_object_get(schema, "anyOf"))) return alternatives(c, list, "anyOf", out);
    if ((list = json_object_get(schema, "oneOf"))) return alternatives(c, list, "oneOf", out);
    if (json_is_string(type)) return typed_schema(c, schema, json_string_value(type), out);
    if (json_is_array(type) && json_array_size(type)) {
        *out = hh_rule_new(c->g);
        json_array_foreach(type, i, one) {
            int32_t rule;
            if (!json_is_string(one)) return hh_fail(c->err, HH_EFORMAT, "JSON schema: a type must be text");
            HH_TRY(typed_schema(c, schema, json_string_value(one), &rule));
            hh_rule_refer(c->g, *out, rule);
            hh_rule_close(c->g, *out);
        }
        return HH_OK;
    }
    if (type) return hh_fail(c->err, HH_EFORMAT, "JSON schema: 'type' must be text or a list of them");
    if (json_object_get(schema, "properties") || json_object_get(schema, "required"))
        return object_schema(c, schema, out);
    if (json_object_get(schema, "items")) return array_schema(c, schema, out);
    *out = value_rule(c);
    return HH_OK;
}

static hh_code compile(compiler *c, const json_t *schema, int32_t *out) {
    if (json_is_true(schema)) {
        *out = value_rule(c);
        return HH_OK;
    }
    if (!json_is_object(schema)) return hh_fail(c->err, HH_EFORMAT, "JSON schema: a schema must be an object or true");
    if (c->depth >= 64) return hh_fail(c->err, HH_EUNSUPPORTED, "JSON schema: nested more than 64 deep");
    c->depth++;
    hh_code code = compile_object(c, schema, out);
    c->depth--;
    return code;
}

hh_code hh_grammar_from_schema(hh_grammar **out, const char *schema, hh_error *err) {
    json_error_t where;
    json_t *root = schema && *schema ? json_loads(schema, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where)
                                     : json_pack("{s:s}", "type", "object");
    *out = NULL;
    if (!root) return hh_fail(err, HH_EFORMAT, "JSON schema: %s (line %d)", where.text, where.line);
    compiler c = {.g = hh_alloc(sizeof *c.g),
                  .root = root,
                  .err = err,
                  .space = -1,
                  .string = -1,
                  .character = -1,
                  .number = -1,
                  .integer = -1,
                  .value = -1};
    int32_t start = hh_rule_new(c.g), inner;
    hh_code code = compile(&c, root, &inner);
    if (code == HH_OK) {
        hh_rule_refer(c.g, start, inner);
        hh_rule_close(c.g, start);
        if (hh_grammar_is_left_recursive(c.g))
            code = hh_fail(err, HH_EUNSUPPORTED, "JSON schema: a '$ref' leads back to itself with nothing between");
    }
    if (code == HH_OK) {
        *out = c.g;
    } else {
        hh_grammar_free(c.g);
    }
    for (int64_t i = 0; i < c.n_known; i++) hh_free(c.known[i].name);
    hh_free(c.known);
    json_decref(root);
    return code;
}
