/* Any bytes as a GGUF file: refused with a sentence, or metadata and tensors that can all be read. What parses is also
 * opened as a store and read as a configuration. */
#include "format/gguf.h"
#include "model/config.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_array(const hh_gguf *g, const char *key) {
    int64_t n, whole;
    const char *s;
    size_t len;
    volatile char last = 0;
    if (!hh_gguf_array_count(g, key, &n)) return;
    for (int64_t i = 0; i < n && i < 1000; i++) {
        if (hh_gguf_array_string(g, key, i, &s, &len) && len) last = s[len - 1];
        hh_gguf_array_int(g, key, i, &whole);
    }
    HH_ASSERT(!hh_gguf_array_int(g, key, n, &whole) && !hh_gguf_array_string(g, key, -1, &s, &len));
    (void)last;
}

static void read_everything(const hh_gguf *g, const uint8_t *data, size_t size) {
    hh_buf text = {0};
    for (int64_t i = 0; i < hh_gguf_key_count(g); i++) {
        HH_ASSERT(hh_gguf_has(g, hh_gguf_key(g, i)));
        hh_gguf_render(g, i, &text);
        hh_buf_clear(&text);
        read_array(g, hh_gguf_key(g, i));
    }
    hh_buf_release(&text);
    for (int64_t i = 0; i < hh_gguf_tensor_count(g); i++) {
        hh_tensor t = hh_gguf_tensor(g, i)->t;
        const uint8_t *p = t.data;
        HH_ASSERT(p >= data && hh_tensor_bytes(t) <= (size_t)(data + size - p));
    }
}

static void read_config(const uint8_t *data, size_t size) {
    static hh_config config;
    hh_error err = {0};
    hh_store *store;
    char path[64];
    int fd = memfd_create("fuzz", 0);
    HH_ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (hh_store_open(&store, path, &err) == HH_OK) {
        if (hh_config_read(&config, store, &err) == HH_OK) {
            double f[1024], factor;
            hh_rope_frequencies(&config, f, &factor);
            HH_ASSERT(hh_config_cache_bytes(&config, 2) > 0);
            json_decref(hh_config_to_json(&config));
        } else {
            HH_ASSERT(strncmp(err.text, path, strlen(path)) == 0);
        }
        hh_store_close(store);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hh_error err = {0};
    hh_gguf *g;
    if (hh_gguf_parse(&g, "fuzz.gguf", data, size, &err) != HH_OK) {
        HH_ASSERT(strncmp(err.text, "fuzz.gguf: ", 11) == 0);
        return 0;
    }
    read_everything(g, data, size);
    hh_gguf_free(g);
    read_config(data, size);
    return 0;
}
