/* Text files, token shards, mixtures and needle documents: what a training run may rely on. */
#include "data/corpus.h"
#include "data/haystack.h"
#include "data/nano.h"

#include <string.h>
#include <zlib.h>

static const char two_documents[] = "One two three.\n\nFour.\n<|endoftext|>\nFive <|endoftext|> six.\n<|endoftext|>\n";

static const char *write_gz(const char *name, const char *text, size_t len) {
    const char *path = temp_path(name);
    gzFile f = gzopen(path, "wb");
    assert_int_equal(gzwrite(f, text, (unsigned)len), len);
    gzclose(f);
    return path;
}

static void plain_and_gzip_files_are_the_same_text(void **state) {
    (void)state;
    char *a, *b;
    size_t n, m;
    assert_ok(hh_text_read(temp_text("a.txt", two_documents), &a, &n, &err));
    assert_ok(hh_text_read(write_gz("a.txt.gz", two_documents, strlen(two_documents)), &b, &m, &err));
    assert_int_equal(n, m);
    assert_string_equal(a, b);
    hh_free(a);
    hh_free(b);
    hh_buf cut = read_whole("models/nano/text_valid.txt.gz");
    assert_refused(hh_text_read(temp_file("cut.gz", cut.data, cut.len / 2), &a, &n, &err), HH_EFORMAT, "cut.gz",
                   "gzip");
    cut.data[2000] ^= 0x55;
    assert_refused(hh_text_read(temp_file("bad.gz", cut.data, cut.len), &a, &n, &err), HH_EFORMAT, "bad.gz", "gzip");
    hh_buf_release(&cut);
    assert_refused(hh_text_read(temp_path("none.txt"), &a, &n, &err), HH_EIO, "none.txt");
    assert_refused(hh_text_read("tests", &a, &n, &err), HH_EINVAL, "tests", "regular file");
}

static void the_shipped_books_are_there(void **state) {
    (void)state;
    char *text[2];
    size_t len[2];
    for (int i = 0; i < 2; i++) assert_ok(hh_text_shipped(i, &text[i], &len[i], &err));
    assert_true(len[0] > 5000000 && len[1] > 1000000);
    for (size_t at = 1000; at + 100 < len[1]; at += len[1] / 50) /* no passage is in both */
        assert_null(memmem(text[0], len[0], text[1] + at, 60));
    hh_free(text[0]);
    hh_free(text[1]);
}

static int64_t count_ids(const hh_shard *s, int32_t id) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++) n += s->ids[i] == id;
    return n;
}

static void a_shard_ends_documents_with_the_end_token(void **state) {
    (void)state;
    hh_shard memory, made, mapped;
    const char *path = temp_text("docs.txt", two_documents), *dir = temp_path("cache");
    assert_ok(hh_shard_open(&memory, path, nano, NULL, &err));
    assert_int_equal(count_ids(&memory, hh_tokenizer_eos(nano)), 2);
    assert_int_equal(memory.ids[memory.n - 1], hh_tokenizer_eos(nano));
    hh_buf text = {0};
    assert_ok(hh_tokenizer_decode(nano, memory.ids, memory.n, false, &text, &err));
    assert_string_equal(text.data,
                        "One two three.\n\nFour.\nFive <|endoftext|> six.\n"); /* within a line the mark is text */
    hh_buf_release(&text);
    assert_ok(hh_shard_open(&made, path, nano, dir, &err));
    assert_ok(hh_shard_open(&mapped, path, nano, dir, &err));
    assert_int_equal(made.n, memory.n);
    assert_int_equal(mapped.n, memory.n);
    assert_memory_equal(mapped.ids, memory.ids, (size_t)memory.n * sizeof(int32_t));
    hh_shard_close(&memory);
    hh_shard_close(&made);
    hh_shard_close(&mapped);
}

static void a_damaged_shard_is_refused_and_a_changed_text_read_anew(void **state) {
    (void)state;
    hh_shard s;
    hh_buf listing = {0};
    const char *path = temp_text("damage.txt", two_documents);
    assert_ok(hh_shard_open(&s, path, nano, temp_path("damage"), &err));
    int64_t n = s.n;
    hh_shard_close(&s);
    assert_int_equal(
        run_line("cd $TMP/damage && f=$(ls) && cp $f ../whole && head -c 90 ../whole > $f", 10, NULL, NULL), 0);
    assert_refused(hh_shard_open(&s, path, nano, temp_path("damage"), &err), HH_EFORMAT, "damage.txt", "delete it");
    assert_int_equal(
        run_line("cd $TMP/damage && f=$(ls) && cp ../whole $f && printf 'x' | dd of=$f bs=1 seek=70 conv=notrunc", 10,
                 NULL, &listing),
        0);
    assert_refused(hh_shard_open(&s, path, nano, temp_path("damage"), &err), HH_EFORMAT, "damage.txt", "delete it");
    hh_buf_release(&listing);
    temp_text("damage.txt", "Another text, longer than the first one by far: of a different size, that is, and so with "
                            "another key to its cache file.\n");
    assert_ok(hh_shard_open(&s, path, nano, temp_path("damage"), &err));
    assert_true(s.n != n);
    hh_shard_close(&s);
}

enum { LENGTH = 200, ROWS = 8 };

typedef struct row {
    int32_t ids[LENGTH];
    uint8_t flags[LENGTH];
} row;

static hh_mixture *open_mixture(const char *weighted, double needles, uint64_t seed) {
    hh_mixture *m;
    hh_mixture_options o = {.files = &weighted, .n_files = weighted ? 1 : 0, .needles = needles, .seed = seed};
    assert_ok(hh_mixture_new(&m, nano, &o, &err));
    return m;
}

static void rows_depend_on_seed_step_and_row_alone(void **state) {
    (void)state;
    char *weighted = hh_sprintf("%s=3", temp_text("one=1.txt", two_documents));
    hh_mixture *a = open_mixture(weighted, 1, 5), *b = open_mixture(weighted, 1, 5), *c = open_mixture(weighted, 1, 6);
    row x, y;
    int needle_rows = 0, differ = 0;
    for (int step = 9; step >= 0; step--)
        for (int r = 0; r < ROWS; r++) { /* b is asked in another order than a */
            assert_ok(hh_mixture_row(a, 9 - step, r, ROWS, LENGTH, x.ids, x.flags, &err));
            assert_ok(hh_mixture_row(b, step, ROWS - 1 - r, ROWS, LENGTH, y.ids, y.flags, &err));
            assert_ok(hh_mixture_row(a, step, ROWS - 1 - r, ROWS, LENGTH, x.ids, x.flags, &err));
            assert_memory_equal(&x, &y, sizeof x);
            bool needle = memchr(x.flags, HH_TOKEN_ANSWER, LENGTH) != NULL;
            needle_rows += needle;
            assert_ok(hh_mixture_row(c, step, ROWS - 1 - r, ROWS, LENGTH, y.ids, NULL, &err));
            differ += memcmp(x.ids, y.ids, sizeof x.ids) != 0;
            assert_true(x.flags[0] & HH_TOKEN_STARTS);
        }
    assert_int_equal(needle_rows, 10 * ROWS / 4); /* one weight in four, exactly in each step */
    assert_true(differ > 5 * ROWS);
    hh_mixture_free(a);
    hh_mixture_free(b);
    hh_mixture_free(c);
    hh_free(weighted);
}

static void a_mixture_refuses_what_cannot_be_trained_on(void **state) {
    (void)state;
    hh_mixture *m;
    const char *words[] = {temp_text("full.txt", two_documents), NULL};
    char *negative = hh_sprintf("%s=-2", words[0]);
    assert_refused(hh_mixture_new(&m, nano, &(hh_mixture_options){0}, &err), HH_EINVAL, "no training data");
    words[1] = negative;
    assert_refused(hh_mixture_new(&m, nano, &(hh_mixture_options){.files = words, .n_files = 2}, &err), HH_EINVAL,
                   "full.txt=-2");
    words[1] = temp_text("empty.txt", "");
    assert_refused(hh_mixture_new(&m, nano, &(hh_mixture_options){.files = words, .n_files = 2}, &err), HH_EINVAL,
                   "empty.txt");
    words[1] = "nowhere.txt=2";
    assert_refused(hh_mixture_new(&m, nano, &(hh_mixture_options){.files = words, .n_files = 2}, &err), HH_EIO,
                   "nowhere.txt");
    hh_free(negative);
}

/* Keys of " for K is: V." as they stand in the text. */
static int check_document(const char *text) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, " magic numbers for ")) != NULL; n++) {
        char first[16] = {0}, second[16] = {0}, value[16] = {0};
        assert_int_equal(sscanf(at, " magic numbers for %15[a-z]-%15[a-z] is: %15[0-9].", first, second, value), 3);
        assert_false(hh_needle_word_held_out(first));
        assert_false(hh_needle_word_held_out(second));
        assert_false(hh_needle_value_held_out(value));
        at++;
    }
    return n;
}

static void needle_documents_end_in_marked_answers(void **state) {
    (void)state;
    hh_needle_docs *d;
    assert_ok(hh_needle_docs_new(&d, nano, &(hh_needle_docs_options){.compact_share = 0.5, .seed = 11}, &err));
    int ruler = 0, several = 0;
    static const int64_t lengths[] = {160, 256, 1024};
    for (int64_t i = 0; i < 60; i++) {
        hh_ids ids = {0}, answer = {0};
        hh_buf text = {0}, marked = {0};
        int64_t length = lengths[i % 3];
        assert_ok(hh_needle_docs_get(d, i, length, &ids, &answer, &err));
        assert_int_equal(ids.len, length);
        assert_int_equal(answer.len, length);
        assert_ok(hh_tokenizer_decode(nano, ids.data, ids.len, false, &text, &err));
        for (int64_t j = 0; j < length; j++)
            if (answer.data[j]) assert_ok(hh_tokenizer_decode(nano, ids.data + j, 1, false, &marked, &err));
        several += check_document(text.data) > 1;
        ruler += strncmp(text.data, "A special magic number is hidden", 32) == 0;
        assert_true(marked.len >= 7 && marked.len % 7 == 0); /* values of seven digits and nothing else */
        assert_memory_equal(text.data + text.len - 8, marked.data + marked.len - 7, 7);
        assert_int_equal(text.data[text.len - 1], '.');
        for (size_t v = 0; v < marked.len; v += 7) { /* each is hidden in the text above */
            char needle[16];
            snprintf(needle, sizeof needle, "is: %.7s.", marked.data + v);
            assert_non_null(strstr(text.data, needle));
        }
        hh_ids_release(&ids);
        hh_ids_release(&answer);
        hh_buf_release(&text);
        hh_buf_release(&marked);
    }
    assert_in_range(ruler, 15, 45);
    assert_true(several > 10);
    hh_ids none = {0};
    assert_refused(hh_needle_docs_get(d, 0, 64, &none, NULL, &err), HH_EINVAL, "64");
    hh_ids_release(&none);
    hh_needle_docs_free(d);
    assert_refused(
        hh_needle_docs_new(&d, nano, &(hh_needle_docs_options){.haystack = "Too short.", .haystack_len = 10}, &err),
        HH_EINVAL, "sentences");
}

/* Every marked value stands in the text as a needle's, and the document ends with the last of them. */
static void all_forms_ask_as_rulers_tasks_do(void **state) {
    (void)state;
    hh_needle_docs *d;
    assert_ok(hh_needle_docs_new(&d, nano,
                                 &(hh_needle_docs_options){.compact_share = 0.5, .all_forms = true, .seed = 12}, &err));
    int uuids = 0, several = 0, lines = 0;
    static const int64_t lengths[] = {160, 512, 1024};
    for (int64_t i = 0; i < 90; i++) {
        hh_ids ids = {0}, answer = {0};
        hh_buf text = {0}, value = {0}, needle = {0};
        int64_t length = lengths[i % 3];
        int values = 0;
        assert_ok(hh_needle_docs_get(d, i, length, &ids, &answer, &err));
        assert_int_equal(ids.len, length);
        assert_ok(hh_tokenizer_decode(nano, ids.data, ids.len, false, &text, &err));
        for (int64_t j = 0; j < length; j++) {
            if (!answer.data[j]) continue;
            assert_ok(hh_tokenizer_decode(nano, ids.data + j, 1, false, &value, &err));
            if (j + 1 < length && answer.data[j + 1]) continue;
            const char *digits = value.data + (value.data[0] == ' ');
            assert_true(strlen(digits) == 7 || strlen(digits) == 36);
            assert_false(hh_needle_value_held_out(digits));
            hh_buf_clear(&needle);
            hh_buf_printf(&needle, " is: %s.", digits);
            assert_non_null(strstr(text.data, needle.data));
            uuids += strlen(digits) == 36;
            values++;
            hh_buf_clear(&value);
        }
        assert_true(values > 0);
        several += strstr(text.data, "What are all the special magic numbers for ") && values > 1;
        lines += strstr(text.data, ".\nOne of the special magic ") != NULL;
        hh_ids_release(&ids);
        hh_ids_release(&answer);
        hh_buf_release(&text);
        hh_buf_release(&value);
        hh_buf_release(&needle);
    }
    assert_true(uuids > 10 && several > 5 && lines > 5);
    hh_needle_docs_free(d);
}

static void sentences_end_where_a_reader_would_end_them(void **state) {
    (void)state;
    static const char text[] = "Mr. Holmes came in. \"Sit down!\" he said. (So he did.) J. Watson asked: why? Because";
    static const char *const begins[] = {"Mr.", "\"Sit", "he", "(So", "J.", "Because"};
    size_t *at;
    int64_t n = hh_sentences(text, sizeof text - 1, &at);
    assert_int_equal(n, 6);
    for (int64_t i = 0; i < n; i++) assert_memory_equal(text + at[i], begins[i], strlen(begins[i]));
    hh_free(at);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_and_gzip_files_are_the_same_text),
        cmocka_unit_test(the_shipped_books_are_there),
        cmocka_unit_test(a_shard_ends_documents_with_the_end_token),
        cmocka_unit_test(a_damaged_shard_is_refused_and_a_changed_text_read_anew),
        cmocka_unit_test(rows_depend_on_seed_step_and_row_alone),
        cmocka_unit_test(a_mixture_refuses_what_cannot_be_trained_on),
        cmocka_unit_test(needle_documents_end_in_marked_answers),
        cmocka_unit_test(all_forms_ask_as_rulers_tasks_do),
        cmocka_unit_test(sentences_end_where_a_reader_would_end_them),
    };
    return cmocka_run_group_tests_name("data/corpus", tests, open_nano, close_nano);
}
