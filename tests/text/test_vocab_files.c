/* tokenizer.json and GGUF vocabularies: what is damaged or not understood is refused by name, and the rules that GGUF
 * files name are applied. */
#include "support/support.h"

#include "format/gguf.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <jansson.h>
#include <string.h>

/* A file with all 256 bytes as tokens 0 to 255 (by their bytes' order), one merge and an added token. */
static json_t *make_file(void) {
    json_t *vocab = json_object();
    char name[5];
    for (int b = 0; b < 256; b++) {
        name[hh_utf8_put(name, hh_byte_to_letter((uint8_t)b))] = 0;
        json_object_set_new(vocab, name, json_integer(b));
    }
    json_object_set_new(vocab, "ab", json_integer(256));
    return json_pack("{s:s,s:n,s:n,s:[{s:i,s:s,s:b,s:b,s:b,s:b,s:b}],s:n,s:{s:s,s:b},s:n,s:{s:s},s:{s:s,s:o,s:[s]}}",
                     "version", "1.0", "truncation", "padding", "added_tokens", "id", 257, "content", "<end>",
                     "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1, "normalizer",
                     "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "post_processor", "decoder", "type",
                     "ByteLevel", "model", "type", "BPE", "vocab", vocab, "merges", "a b");
}

static hh_code parse(hh_tokenizer **t, const json_t *file, hh_error *err) {
    char *text = json_dumps(file, 0);
    hh_code code = hh_tokenizer_parse_json(t, "file.json", text, strlen(text), err);
    hh_free(text);
    return code;
}

/* Replaces the field at a path like "model.vocab" by a JSON text and expects a refusal that names `word`; NULL: it is
 * taken. */
static void try_field(const char *path, const char *value, const char *word) {
    hh_error err = {0};
    hh_tokenizer *t = NULL;
    json_t *file = make_file(), *object = file;
    char parent[64];
    const char *dot = strchr(path, '.');
    if (dot) {
        snprintf(parent, sizeof parent, "%.*s", (int)(dot - path), path);
        object = json_object_get(file, parent);
        path = dot + 1;
    }
    if (json_is_array(object)) object = json_array_get(object, 0);
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(v);
    json_object_set_new(object, path, v);
    hh_code code = parse(&t, file, &err);
    if (word) {
        if (code != HH_EFORMAT && code != HH_EUNSUPPORTED) fail_msg("%s = %s is taken", path, value);
        if (!strstr(err.text, word) || !strstr(err.text, "file.json"))
            fail_msg("%s = %s: '%s' does not say %s", path, value, err.text, word);
        assert_null(t);
    } else {
        if (code != HH_OK) fail_msg("%s = %s: %s", path, value, err.text);
    }
    hh_tokenizer_close(t);
    json_decref(file);
}

static void test_fields(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"version", "\"1.0\"", NULL},
        {"padding", "{\"strategy\":\"BatchLongest\"}", NULL},
        {"padding", "{\"strategy\":{\"Fixed\":8}}", "padding"},
        {"truncation", "{\"max_length\":5}", "truncation"},
        {"surprise", "1", "surprise"},
        {"normalizer", "{\"type\":\"Lowercase\"}", "Lowercase"},
        {"normalizer", "{\"type\":\"NFC\",\"x\":1}", "normalizer.x"},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\"}]}",
         "normalizer.normalizers[0].type"},
        {"normalizer", "[]", "normalizer"},
        {"pre_tokenizer", "null", "pre_tokenizer"},
        {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "Whitespace"},
        {"pre_tokenizer", "{\"type\":\"Digits\",\"individual_digits\":true}", "ByteLevel"},
        {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}",
         "ByteLevel"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w\"},\"behavior\":\"Isolated\",\"invert\":false}", "\\w"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},\"behavior\":\"Isolated\",\"invert\":false}", "pattern"},
        {"pre_tokenizer",
         "{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":\"Sideways\",\"invert\":false}", "behavior"},
        {"post_processor", "{\"type\":\"RobertaProcessing\"}", "RobertaProcessing"},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}", "single"},
        {"post_processor",
         "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}}],\"special_"
         "tokens\":{}}",
         "special_tokens.x"},
        {"decoder", "null", "decoder"},
        {"decoder", "{\"type\":\"Metaspace\"}", "Metaspace"},
        {"model", "null", "model"},
        {"model.type", "\"Unigram\"", "Unigram"},
        {"model.dropout", "0.1", "dropout"},
        {"model.byte_fallback", "true", "byte_fallback"},
        {"model.continuing_subword_prefix", "\"##\"", "continuing_subword_prefix"},
        {"model.continuing_subword_prefix", "\"\"", NULL},
        {"model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
        {"model.unk_token", "\"<unk>\"", "unk_token"},
        {"model.vocab", "[]", "vocab"},
        {"model.vocab", "{\"a\":-1}", "'a'"},
        {"model.vocab", "{\"a\":99999999}", "'a'"},
        {"model.vocab", "{\"a\":1,\"b\":1}", "'b'"},
        {"model.merges", "{}", "merges"},
        {"model.merges", "[\"a\"]", "merges[0]"},
        {"model.merges", "[\"a b\",[\"a\"]]", "merges[1]"},
        {"model.merges", "[\"a b\",[\"a\",\"zz\"]]", "merges[1]"},
        {"model.merges", "[[\"a\",\"b\"]]", NULL},
        {"added_tokens", "5", "added_tokens"},
        {"added_tokens.id", "900", "added_tokens[0].id"},
        {"added_tokens.id", "5", "added_tokens[0].id"},
        {"added_tokens.special", "null", "added_tokens[0].special"},
        {"added_tokens.special", "3", "added_tokens[0].special"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) try_field(cases[i][0], cases[i][1], cases[i][2]);
}

static void test_no_json(void **state) {
    (void)state;
    hh_error err = {0};
    hh_tokenizer *t;
    assert_refused(hh_tokenizer_parse_json(&t, "f.json", "", 0, &err), HH_EFORMAT, "f.json");
    assert_refused(hh_tokenizer_parse_json(&t, "f.json", "{", 1, &err), HH_EFORMAT, "f.json");
    assert_refused(hh_tokenizer_parse_json(&t, "f.json", "{}", 2, &err), HH_EFORMAT, "f.json");
    assert_refused(hh_tokenizer_open(&t, temp_folder(), &err), HH_EIO, "tokenizer.json", temp_folder());
    assert_refused(hh_tokenizer_open(&t, temp_path("absent.json"), &err), HH_EIO, "absent.json");
    json_t *file = make_file();
    char *text = json_dumps(file, 0);
    json_decref(file);
    temp_text("tokenizer.json", text);
    temp_text("generation_config.json", "{\"eos_token_id\": [257, 5, 257, 100000]}");
    assert_ok(hh_tokenizer_open(&t, temp_folder(), &err));
    int64_t n;
    const int32_t *ends = hh_tokenizer_end_ids(t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ends[0], 257);
    assert_int_equal(ends[1], 5);
    hh_tokenizer_close(t);
    temp_text("tokenizer_config.json", "{");
    assert_refused(hh_tokenizer_open(&t, temp_folder(), &err), HH_EFORMAT, "tokenizer_config.json");
    hh_free(text);
}

/* ---- GGUF: written by hand */

static void put(hh_buf *b, uint64_t x, int bytes) {
    hh_buf_add(b, &x, (size_t)bytes);
}
static void put_string(hh_buf *b, const char *s) {
    put(b, strlen(s), 8);
    hh_buf_puts(b, s);
}
static void key_string(hh_buf *b, const char *key, const char *value) {
    put_string(b, key);
    put(b, 8, 4);
    put_string(b, value);
}
static void key_u32(hh_buf *b, const char *key, uint32_t value) {
    put_string(b, key);
    put(b, 4, 4);
    put(b, value, 4);
}

enum { CONTROL = 256, USER, MERGED, N_TOKENS };

/* All bytes, a control token, a user-defined one, "ab"; `pre` NULL leaves the key out. */
static hh_buf make_gguf(const char *model, const char *pre, const char *merge, int last_type) {
    hh_buf b = {0};
    hh_buf_puts(&b, "GGUF");
    put(&b, 3, 4);
    put(&b, 0, 8);
    put(&b, pre ? 8 : 7, 8);
    key_string(&b, "tokenizer.ggml.model", model);
    if (pre) key_string(&b, "tokenizer.ggml.pre", pre);
    key_u32(&b, "tokenizer.ggml.bos_token_id", CONTROL);
    key_u32(&b, "tokenizer.ggml.eos_token_id", CONTROL);
    put_string(&b, "tokenizer.ggml.add_eos_token");
    put(&b, 7, 4);
    put(&b, 1, 1);
    put_string(&b, "tokenizer.ggml.tokens");
    put(&b, 9, 4);
    put(&b, 8, 4);
    put(&b, N_TOKENS, 8);
    for (int i = 0; i < 256; i++) {
        char name[5];
        name[hh_utf8_put(name, hh_byte_to_letter((uint8_t)i))] = 0;
        put_string(&b, name);
    }
    put_string(&b, "<|end|>");
    put_string(&b, "<tool>");
    put_string(&b, "ab");
    put_string(&b, "tokenizer.ggml.token_type");
    put(&b, 9, 4);
    put(&b, 5, 4);
    put(&b, N_TOKENS, 8);
    for (int i = 0; i < N_TOKENS; i++)
        put(&b, (uint64_t)(i == CONTROL ? 3 : i == USER ? 4 : i == MERGED ? last_type : 1), 4);
    put_string(&b, "tokenizer.ggml.merges");
    put(&b, 9, 4);
    put(&b, 8, 4);
    put(&b, 1, 8);
    put_string(&b, merge);
    return b;
}

static hh_code open_gguf(hh_tokenizer **t, hh_buf bytes, hh_error *err) {
    hh_gguf *g;
    assert_int_equal(hh_gguf_parse(&g, "vocab.gguf", bytes.data, bytes.len, err), HH_OK);
    hh_code code = hh_tokenizer_open_gguf(t, g, "vocab.gguf", err);
    hh_gguf_free(g);
    hh_buf_release(&bytes);
    return code;
}

static void expect_ids(const hh_tokenizer *t, const char *text, int flags, const int32_t *ids, int64_t n) {
    hh_error err = {0};
    hh_ids got = {0};
    assert_ok(hh_tokenizer_encode(t, text, strlen(text), flags, &got, &err));
    assert_int_equal(got.len, n);
    assert_memory_equal(got.data, ids, (size_t)n * sizeof *ids);
    hh_ids_release(&got);
}

static void test_gguf(void **state) {
    (void)state;
    hh_error err = {0};
    hh_tokenizer *t;
    assert_ok(open_gguf(&t, make_gguf("gpt2", "gpt-2", "a b", 1), &err));
    expect_ids(t, "ab", HH_ENCODE_PLAIN, (const int32_t[]){MERGED}, 1);
    expect_ids(t, "a<tool>", HH_ENCODE_PLAIN, (const int32_t[]){'a', USER}, 2); /* user-defined tokens always count */
    expect_ids(t, "<|end|>a", HH_ENCODE_SPECIAL, (const int32_t[]){CONTROL, 'a'}, 2);
    expect_ids(t, "<|", HH_ENCODE_PLAIN, (const int32_t[]){'<', '|'}, 2);
    expect_ids(t, "a", HH_ENCODE_BOS_EOS, (const int32_t[]){'a', CONTROL},
               2); /* add_eos_token is set, add_bos_token is not */
    assert_int_equal(hh_tokenizer_eos(t), CONTROL);
    assert_true(hh_tokenizer_is_special(t, CONTROL));
    assert_false(hh_tokenizer_is_special(t, USER));
    hh_tokenizer_close(t);

    assert_ok(open_gguf(&t, make_gguf("gpt2", "llama-bpe", "a b", 1), &err)); /* Llama-3 adds BOS by itself */
    expect_ids(t, "a", HH_ENCODE_BOS_EOS, (const int32_t[]){CONTROL, 'a', CONTROL}, 3);
    hh_tokenizer_close(t);
    assert_ok(open_gguf(&t, make_gguf("gpt2", "qwen2", "a b", 1), &err)); /* Qwen normalises */
    expect_ids(t, "e\xcc\x81", HH_ENCODE_PLAIN, (const int32_t[]){0xc3, 0xa9}, 2);
    hh_tokenizer_close(t);
    static const char *const known[] = {"smollm",   "starcoder", "refact", "phi-2",  "qwen35",     "llama3",
                                        "llama-v3", "gpt-4o",    "llama4", "tekken", "deepseek-v3"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        assert_ok(open_gguf(&t, make_gguf("gpt2", known[i], "a b", 1), &err));
        expect_ids(t, "ab", HH_ENCODE_PLAIN, (const int32_t[]){MERGED}, 1);
        hh_tokenizer_close(t);
    }
}

static void test_gguf_refused(void **state) {
    (void)state;
    hh_error err = {0};
    hh_tokenizer *t;
    assert_refused(open_gguf(&t, make_gguf("llama", "gpt-2", "a b", 1), &err), HH_EUNSUPPORTED, "vocab.gguf",
                   "'llama'");
    assert_refused(open_gguf(&t, make_gguf("gpt2", NULL, "a b", 1), &err), HH_EUNSUPPORTED, "tokenizer.ggml.pre");
    assert_refused(open_gguf(&t, make_gguf("gpt2", "default", "a b", 1), &err), HH_EUNSUPPORTED, "default");
    assert_refused(open_gguf(&t, make_gguf("gpt2", "viking", "a b", 1), &err), HH_EUNSUPPORTED, "'viking'", "smollm");
    assert_refused(open_gguf(&t, make_gguf("gpt2", "gpt-2", "ab", 1), &err), HH_EFORMAT, "merges[0]");
    assert_refused(open_gguf(&t, make_gguf("gpt2", "gpt-2", "b a", 1), &err), HH_EFORMAT, "merges[0]");
    assert_refused(open_gguf(&t, make_gguf("gpt2", "gpt-2", "a b", 6), &err), HH_EUNSUPPORTED, "token_type[258]");
    assert_null(t);
}

static void test_program(void **state) {
    (void)state;
    hh_buf out = {0}, errors = {0};
    assert_int_equal(
        run_line("$HYDRAHEAD tokenize nano --json 'The grass is green.' > $TMP/ids && cat $TMP/ids", 20, &out, &errors),
        0);
    assert_string_equal(out.data, "{\"ids\": [485, 605, 532, 370, 1278, 278, 14]}\n");
    assert_int_equal(run_line("printf 'a <|endoftext|>\\377' | $HYDRAHEAD tokenize nano --special | $HYDRAHEAD "
                              "tokenize nano --special --decode - | od -An -c",
                              20, &out, &errors),
                     0);
    assert_non_null(strstr(out.data, "377"));
    assert_int_equal(run_line("$HYDRAHEAD tokenize nano --decode 5000", 20, &out, &errors), 2);
    assert_non_null(strstr(errors.data, "5000"));
    assert_int_equal(run_line("$HYDRAHEAD tokenize nano --decode 1,x", 20, &out, &errors), 2);
    assert_int_equal(run_line("$HYDRAHEAD tokenize $TMP/nothing x", 20, &out, &errors), 1);
    assert_int_equal(run_line("$HYDRAHEAD tokenize nano --file $TMP/nothing", 20, &out, &errors), 1);
    hh_buf_release(&out);
    hh_buf_release(&errors);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),       cmocka_unit_test(test_no_json), cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_gguf_refused), cmocka_unit_test(test_program),
    };
    return cmocka_run_group_tests_name("vocabulary files", tests, NULL, NULL);
}
