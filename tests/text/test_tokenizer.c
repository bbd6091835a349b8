/* Tokenizers give the ids of Hugging Face `tokenizers` for every rule, keep every byte, and read text of any shape in
 * linear time. */
#include "support/support.h"

#include "base/progress.h"
#include "format/store.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <string.h>

static json_t *load(const char *path) {
    hh_buf text = read_whole(path);
    json_error_t fault;
    json_t *json = json_loadb(text.data, text.len, JSON_ALLOW_NUL, &fault);
    if (!json) fail_msg("%s: %s", path, fault.text);
    hh_buf_release(&text);
    return json;
}

static hh_tokenizer *open_nano(void) {
    hh_error err = {0};
    hh_tokenizer *t;
    assert_ok(hh_tokenizer_open(&t, "models/nano", &err));
    return t;
}

static hh_tokenizer *parse(const json_t *json) {
    hh_error err = {0};
    hh_tokenizer *t;
    char *text = json_dumps(json, 0);
    assert_ok(hh_tokenizer_parse_json(&t, "test.json", text, strlen(text), &err));
    hh_free(text);
    return t;
}

static void check_ids(const hh_ids *ids, const json_t *expected, const char *where) {
    size_t n = json_array_size(expected);
    for (size_t i = 0; i < n && (int64_t)i < ids->len; i++)
        if (ids->data[i] != json_integer_value(json_array_get(expected, i)))
            fail_msg("%s: id %zu is %d, expected %lld", where, i, ids->data[i],
                     (long long)json_integer_value(json_array_get(expected, i)));
    if (ids->len != (int64_t)n) fail_msg("%s: %lld ids, expected %zu", where, (long long)ids->len, n);
}

static void check_case(const hh_tokenizer *t, const json_t *c, const char *where) {
    hh_error err = {0};
    const char *text = json_string_value(json_object_get(c, "text"));
    size_t len = json_string_length(json_object_get(c, "text"));
    const json_t *plain = json_object_get(c, "ids"), *special = json_object_get(c, "special"),
                 *all = json_object_get(c, "all");
    if (!special) special = plain;
    const struct {
        int flags;
        const json_t *ids;
    } ways[] = {{HH_ENCODE_PLAIN, plain},
                {HH_ENCODE_SPECIAL, special},
                {HH_ENCODE_SPECIAL | HH_ENCODE_BOS_EOS, all ? all : plain}};
    for (size_t i = 0; i < 3; i++) {
        char name[300];
        hh_ids ids = {0};
        snprintf(name, sizeof name, "%s, flags %d, text '%.150s'", where, ways[i].flags, text);
        assert_ok(hh_tokenizer_encode(t, text, len, ways[i].flags, &ids, &err));
        if (ways[i].flags != (HH_ENCODE_SPECIAL | HH_ENCODE_BOS_EOS) || json_object_get(c, "all"))
            check_ids(&ids, ways[i].ids, name);
        hh_ids_release(&ids);
    }
}

static void check_file(const hh_tokenizer *t, const char *path) {
    json_t *cases = load(path), *c;
    size_t i;
    json_array_foreach(cases, i, c) check_case(t, c, path);
    json_decref(cases);
}

static void test_nano(void **state) {
    (void)state;
    hh_tokenizer *t = open_nano();
    check_file(t, "tests/text/golden/nano.json");
    assert_int_equal(hh_tokenizer_vocab_size(t), 2048);
    assert_int_equal(hh_tokenizer_id(t, "<|endoftext|>"), 0);
    assert_true(hh_tokenizer_is_special(t, 0));
    assert_int_equal(hh_tokenizer_eos(t), 0);
    int64_t n;
    assert_int_equal(hh_tokenizer_end_ids(t, &n)[0], 0);
    assert_int_equal(n, 1);
    size_t len;
    int32_t the = hh_tokenizer_id(t, "\xc4\xa0the"); /* as the file writes it */
    assert_memory_equal(hh_tokenizer_token(t, the, &len), " the", 4);
    hh_tokenizer_close(t);
}

static void test_smollm2(void **state) {
    (void)state;
    const char *path = "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!have(path)) skip();
    hh_error err = {0};
    hh_tokenizer *t;
    assert_ok(hh_tokenizer_open(&t, path, &err));
    check_file(t, "tests/text/golden/smollm2.json");
    assert_int_equal(hh_tokenizer_bos(t), 1);
    assert_int_equal(hh_tokenizer_eos(t), 2);
    hh_ids ids = {0};
    hh_buf text = {0};
    const hh_chat_turn turn = {"user", "Hi <|im_end|>"};
    assert_ok(hh_tokenizer_chat(t, &turn, 1, &ids, &err));
    assert_ok(hh_tokenizer_decode(t, ids.data, ids.len, true, &text, &err));
    assert_string_equal(
        text.data,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n");
    int ends = 0; /* what the user writes stays text */
    for (int64_t i = 0; i < ids.len; i++) ends += ids.data[i] == 2;
    assert_int_equal(ends, 2);
    hh_ids_release(&ids);
    hh_buf_release(&text);
    hh_tokenizer_close(t);
}

static void test_qwen(void **state) {
    (void)state;
    const char *path = "models/qwen/tokenizer.json";
    if (!have(path)) skip();
    hh_error err = {0};
    hh_tokenizer *t;
    assert_ok(hh_tokenizer_open(&t, "models/qwen", &err));
    check_file(t, "tests/text/golden/qwen.json");
    hh_tokenizer_close(t);
}

/* nano's file with parts replaced, as tools/make_tokenizer_golden.py does it. */
static json_t *apply_patch(const json_t *base, const json_t *patch) {
    json_t *whole = json_deep_copy(base);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)patch, name, value) {
        if (strcmp(name, "model") != 0) {
            json_object_set(whole, name, value);
            continue;
        }
        json_t *model = json_object_get(whole, "model"), *merges = json_array(), *merge, *token;
        size_t i, k;
        json_t *drop = json_object_get(value, "drop");
        json_array_foreach(json_object_get(model, "merges"), i, merge) {
            bool keep = true;
            json_array_foreach(drop, k, token) keep =
                keep && !json_equal(token, json_array_get(merge, 0)) && !json_equal(token, json_array_get(merge, 1));
            if (keep) json_array_append(merges, merge);
        }
        json_array_foreach(drop, k, token) json_object_del(json_object_get(model, "vocab"), json_string_value(token));
        json_object_update(model, value);
        json_object_del(model, "drop");
        json_object_set_new(model, "merges", merges);
    }
    return whole;
}

static void test_rules(void **state) {
    (void)state;
    json_t *base = load("models/nano/tokenizer.json"), *all = load("tests/text/golden/rules.json"), *rule, *c;
    size_t i, k;
    json_array_foreach(all, i, rule) {
        json_t *whole = apply_patch(base, json_object_get(rule, "patch"));
        hh_tokenizer *t = parse(whole);
        char *where = json_dumps(json_object_get(rule, "patch"), JSON_COMPACT);
        json_array_foreach(json_object_get(rule, "cases"), k, c) check_case(t, c, where);
        hh_free(where);
        hh_tokenizer_close(t);
        json_decref(whole);
    }
    json_decref(all);
    json_decref(base);
}

static void check_round_trip(const hh_tokenizer *t, const char *bytes, size_t n) {
    hh_error err = {0};
    hh_ids ids = {0};
    hh_buf text = {0};
    hh_buf_puts(&text, "");
    assert_ok(hh_tokenizer_encode(t, bytes, n, HH_ENCODE_PLAIN, &ids, &err));
    assert_ok(hh_tokenizer_decode(t, ids.data, ids.len, false, &text, &err));
    assert_int_equal(text.len, n);
    assert_memory_equal(text.data, bytes, n);

    hh_buf stream = {0}; /* the same, token by token */
    hh_detok d = {0};
    hh_buf_puts(&stream, "");
    for (int64_t i = 0; i < ids.len; i++) hh_detok_push(&d, t, ids.data[i], &stream);
    hh_detok_flush(&d, &stream);
    assert_int_equal(stream.len, n);
    assert_memory_equal(stream.data, bytes, n);
    hh_buf_release(&stream);
    hh_buf_release(&text);
    hh_ids_release(&ids);
}

static void test_bytes_survive(void **state) {
    (void)state;
    hh_tokenizer *t = open_nano();
    static const char *const texts[] = {"\xff",
                                        "a\x80"
                                        "b",
                                        "\xe2\x82",
                                        "\xe2\x82 \xac",
                                        "\xc0\x80",
                                        "\xed\xa0\x80",
                                        "\xf4\x90\x80\x80",
                                        "\xf0\x9f\x99",
                                        "\xef\xbf\xbd",
                                        "caf\xe9 \xe9t\xe9",
                                        " \xfe\xff 12\xff"
                                        "34",
                                        "<|endof\xfftext|>"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) check_round_trip(t, texts[i], strlen(texts[i]));
    check_round_trip(t, "a\0b\0\0", 5);
    check_round_trip(t, "<|endoftext|>", 13);
    char bytes[300];
    uint32_t x = 1;
    for (int round = 0; round < 2000; round++) { /* any bytes */
        size_t n = (size_t)round % sizeof bytes;
        for (size_t i = 0; i < n; i++) bytes[i] = (char)((x = x * 1664525 + 1013904223) >> 24);
        check_round_trip(t, bytes, n);
    }
    hh_tokenizer_close(t);
}

static void test_held_back(void **state) {
    (void)state;
    hh_tokenizer *t = open_nano();
    hh_error err = {0};
    hh_ids ids = {0};
    hh_buf out = {0};
    hh_detok d = {0};
    const char *text = "\xf0\x9f\x99\x82"; /* one character of several tokens */
    assert_ok(hh_tokenizer_encode(t, text, 4, HH_ENCODE_PLAIN, &ids, &err));
    assert_true(ids.len > 1);
    hh_buf_puts(&out, "");
    for (int64_t i = 0; i < ids.len; i++) {
        assert_int_equal(out.len, 0);
        hh_detok_push(&d, t, ids.data[i], &out);
    }
    assert_string_equal(out.data, text);
    hh_buf_clear(&out);
    hh_detok_push(&d, t, ids.data[0], &out); /* cut short: flushed as it is */
    hh_detok_push(&d, t, 0, &out);           /* a special token is not shown */
    assert_int_equal(out.len, 0);
    hh_detok_flush(&d, &out);
    assert_true(out.len > 0);
    hh_ids_release(&ids);
    hh_buf_release(&out);
    hh_tokenizer_close(t);
}

static void test_special_tokens_are_text(void **state) {
    (void)state;
    hh_tokenizer *t = open_nano();
    hh_error err = {0};
    hh_ids ids = {0};
    hh_buf text = {0};
    const char *s = "a<|endoftext|>";
    assert_ok(hh_tokenizer_encode(t, s, strlen(s), HH_ENCODE_PLAIN, &ids, &err));
    for (int64_t i = 0; i < ids.len; i++) assert_int_not_equal(ids.data[i], 0);
    ids.len = 0;
    assert_ok(hh_tokenizer_encode(t, s, strlen(s), HH_ENCODE_SPECIAL, &ids, &err));
    assert_int_equal(ids.data[ids.len - 1], 0);
    assert_ok(hh_tokenizer_decode(t, ids.data, ids.len, false, &text, &err));
    assert_string_equal(text.data, "a");
    hh_buf_clear(&text);
    assert_ok(hh_tokenizer_decode(t, ids.data, ids.len, true, &text, &err));
    assert_string_equal(text.data, s);
    const int32_t wrong[] = {5, 2048};
    assert_refused(hh_tokenizer_decode(t, wrong, 2, false, &text, &err), HH_EINVAL, "2048", "2047", "models/nano");
    hh_ids_release(&ids);
    hh_buf_release(&text);
    hh_tokenizer_close(t);
}

/* A megabyte without a place to cut takes seconds, not hours, for scanners and for PCRE2. */
static void test_long_words(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    json_t *base = load("models/nano/tokenizer.json");
    static const char *const patches[] = {"{}",
                                          "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
                                          "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                                          "\" ?\\\\p{L}+|\\\\p{N}| "
                                          "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|"
                                          "\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},"
                                          "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}}"};
    static const char *const units[] = {
        "a", " ", "\n", "ab", "1", "!", " \n", "\xcc\x81\xcc\x96", "\xff", "<|endoftext|>", "'"};
    char *text = hh_alloc(N);
    double start = hh_now();
    for (size_t p = 0; p < 2; p++) {
        json_t *patch = json_loads(patches[p], 0, NULL);
        assert_non_null(patch);
        json_t *whole = apply_patch(base, patch);
        hh_tokenizer *t = parse(whole);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t len = strlen(units[u]);
            for (size_t i = 0; i < N; i++) text[i] = units[u][i % len];
            text[N - 1] = 'x';
            hh_error err = {0};
            hh_ids ids = {0};
            assert_ok(hh_tokenizer_encode(t, text, N, HH_ENCODE_PLAIN, &ids, &err));
            assert_true(ids.len > 0);
            hh_ids_release(&ids);
        }
        hh_tokenizer_close(t);
        json_decref(whole);
        json_decref(patch);
    }
    assert_true(hh_now() - start < 60);
    hh_free(text);
    json_decref(base);
}

static void test_chat(void **state) {
    (void)state;
    hh_error err = {0};
    json_t *base = load("models/nano/tokenizer.json"), *all = load("tests/text/golden/chat.json"), *one, *c;
    size_t i, k;
    json_array_foreach(all, i, one) {
        json_object_set(base, "added_tokens", json_object_get(one, "added_tokens"));
        char *file = json_dumps(base, 0);
        json_t *config = json_pack("{s:O,s:s,s:{s:s}}", "chat_template", json_object_get(one, "template"), "bos_token",
                                   "<|begin_of_text|>", "eos_token", "content", "<|im_end|>");
        char *config_file = json_dumps(config, 0);
        temp_text("tokenizer.json", file);
        temp_text("tokenizer_config.json", config_file);
        hh_tokenizer *t;
        assert_ok(hh_tokenizer_open(&t, temp_folder(), &err));
        assert_int_equal(hh_tokenizer_eos(t), hh_tokenizer_id(t, "<|im_end|>"));
        json_array_foreach(json_object_get(one, "cases"), k, c) {
            hh_chat_turn turns[8];
            const json_t *list = json_object_get(c, "turns");
            for (size_t j = 0; j < json_array_size(list); j++) {
                const json_t *turn = json_array_get(list, j);
                turns[j] = (hh_chat_turn){json_string_value(json_array_get(turn, 0)),
                                          json_string_value(json_array_get(turn, 1))};
            }
            hh_ids ids = {0};
            char where[100];
            snprintf(where, sizeof where, "%s, chat %zu", json_string_value(json_object_get(one, "name")), k);
            assert_ok(hh_tokenizer_chat(t, turns, (int64_t)json_array_size(list), &ids, &err));
            check_ids(&ids, json_object_get(c, "ids"), where);
            hh_ids_release(&ids);
        }
        hh_tokenizer_close(t);
        json_decref(config);
        hh_free(config_file);
        hh_free(file);
    }
    json_decref(all);
    json_decref(base);
}

static void check_chat_refused(const char *template, const char *word) {
    hh_error err = {0};
    json_t *config = json_pack("{s:s}", "chat_template", template);
    char *text = json_dumps(config, 0);
    hh_buf nano = read_whole("models/nano/tokenizer.json");
    temp_file("tokenizer.json", nano.data, nano.len);
    temp_text("tokenizer_config.json", text);
    hh_tokenizer *t;
    assert_ok(hh_tokenizer_open(&t, temp_folder(), &err));
    hh_ids ids = {0};
    const hh_chat_turn turn = {"user", "x"};
    assert_refused(hh_tokenizer_chat(t, &turn, 1, &ids, &err), HH_EUNSUPPORTED, word);
    assert_int_equal(ids.len, 0);
    hh_tokenizer_close(t);
    hh_free(text);
    json_decref(config);
    hh_buf_release(&nano);
}

static void test_other_chats_are_refused(void **state) {
    (void)state;
    hh_error err = {0};
    hh_ids ids = {0};
    check_chat_refused("[INST] {{ messages[0].content }} [/INST]", "[INST]");
    check_chat_refused("{{'<|im_start|>' + message.role}}{{'<|im_end|>'}}{{ '<|im_start|>assistant\\n<think>' }}{{ "
                       "raise_exception('x') }}",
                       "raise_exception");
    check_chat_refused(
        "{{'<|im_start|>' + message.role + content.split('</think>')[0]}}{{ '<|im_start|>assistant\\n' }}", "</think>");
    hh_tokenizer *t = open_nano();
    const hh_chat_turn tool = {"tool", "x"}, user = {"user", "x"};
    assert_refused(hh_tokenizer_chat(t, &user, 1, &ids, &err), HH_EUNSUPPORTED, "models/nano", "no chat template");
    assert_refused(hh_tokenizer_chat(t, &tool, 1, &ids, &err), HH_EINVAL, "tool");
    assert_refused(hh_tokenizer_chat(t, &user, 0, &ids, &err), HH_EINVAL, "one turn");
    hh_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nano),
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_bytes_survive),
        cmocka_unit_test(test_held_back),
        cmocka_unit_test(test_special_tokens_are_text),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_other_chats_are_refused),
    };
    return cmocka_run_group_tests_name("tokenizers", tests, NULL, NULL);
}
