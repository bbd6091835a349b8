/* Random numbers; see rng.h. xoshiro256** and splitmix64 are Blackman's and Vigna's; the Mersenne Twister is
 * Matsumoto's and Nishimura's, drawn from as CPython's Modules/_randommodule.c and Lib/random.py do. */
#include "base/rng.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint64_t rotate(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

static uint64_t split_mix(uint64_t *s) {
    uint64_t z = *s += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

hh_rng hh_rng_seeded(uint64_t seed) {
    hh_rng r;
    for (int i = 0; i < 4; i++) r.s[i] = split_mix(&seed);
    return r;
}

hh_rng hh_rng_stream(uint64_t seed, uint64_t index) {
    uint64_t a = seed, b = ~index;
    return hh_rng_seeded(split_mix(&a) ^ rotate(split_mix(&b), 32));
}

uint64_t hh_rng_u64(hh_rng *r) {
    uint64_t *s = r->s, result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

double hh_rng_uniform(hh_rng *r) {
    return (double)(hh_rng_u64(r) >> 11) * 0x1p-53;
}

int64_t hh_rng_below(hh_rng *r, int64_t n) {
    HH_ASSERT(n > 0);
    /* The first (2^64 mod n) values would make small results more likely: they are drawn again. */
    uint64_t m = (uint64_t)n, biased = -m % m, x;
    do x = hh_rng_u64(r);
    while (x < biased);
    return (int64_t)(x % m);
}

double hh_rng_normal(hh_rng *r) {
    double u = 1.0 - hh_rng_uniform(r), v = hh_rng_uniform(r); /* u in (0, 1] */
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}

void hh_rng_shuffle(hh_rng *r, int64_t *a, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = hh_rng_below(r, i + 1), t = a[i];
        a[i] = a[j];
        a[j] = t;
    }
}

enum { MT_N = 624, MT_M = 397 };

static void init_genrand(hh_mt *m, uint32_t s) {
    m->state[0] = s;
    for (uint32_t i = 1; i < MT_N; i++) m->state[i] = 1812433253u * (m->state[i - 1] ^ m->state[i - 1] >> 30) + i;
}

/* init_by_array with the 32-bit digits of the seed, least first, as random.seed(int) does. */
void hh_mt_seed(hh_mt *m, uint64_t seed) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, *s = m->state;
    uint32_t length = key[1] ? 2 : 1, i = 1, j = 0;
    init_genrand(m, 19650218u);
    for (int k = MT_N; k; k--) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1664525u) + key[j] + j;
        if (++i >= MT_N) {
            s[0] = s[MT_N - 1];
            i = 1;
        }
        if (++j >= length) j = 0;
    }
    for (int k = MT_N - 1; k; k--) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1566083941u) - i;
        if (++i >= MT_N) {
            s[0] = s[MT_N - 1];
            i = 1;
        }
    }
    s[0] = 0x80000000u;
    m->index = MT_N;
}

static void generate(uint32_t *s) {
    for (int k = 0; k < MT_N; k++) {
        uint32_t y = (s[k] & 0x80000000u) | (s[(k + 1) % MT_N] & 0x7fffffffu);
        s[k] = s[(k + MT_M) % MT_N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
}

static uint32_t next_u32(hh_mt *m) {
    if (m->index >= MT_N) {
        generate(m->state);
        m->index = 0;
    }
    uint32_t y = m->state[m->index++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

double hh_mt_random(hh_mt *m) {
    uint32_t a = next_u32(m) >> 5, b = next_u32(m) >> 6;
    return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0);
}

uint64_t hh_mt_getrandbits(hh_mt *m, int bits) {
    HH_ASSERT(bits >= 1 && bits <= 64);
    if (bits <= 32) return next_u32(m) >> (32 - bits);
    uint64_t low = next_u32(m);
    return low | (uint64_t)(next_u32(m) >> (64 - bits)) << 32;
}

int64_t hh_mt_below(hh_mt *m, int64_t n) {
    HH_ASSERT(n > 0);
    int bits = 64 - __builtin_clzll((unsigned long long)n);
    uint64_t r;
    do r = hh_mt_getrandbits(m, bits);
    while (r >= (uint64_t)n);
    return (int64_t)r;
}

int64_t hh_mt_randint(hh_mt *m, int64_t lo, int64_t hi) {
    HH_ASSERT(lo <= hi);
    return lo + hh_mt_below(m, hi - lo + 1);
}

void hh_mt_shuffle(hh_mt *m, int64_t *a, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = hh_mt_below(m, i + 1), t = a[i];
        a[i] = a[j];
        a[j] = t;
    }
}

/* random.sample for a population that is small beside the sample: draws from a shrinking pool. */
static void sample_from_pool(hh_mt *m, int64_t n, int64_t k, int64_t *out) {
    int64_t *pool = hh_alloc((size_t)n * sizeof *pool);
    for (int64_t i = 0; i < n; i++) pool[i] = i;
    for (int64_t i = 0; i < k; i++) {
        int64_t j = hh_mt_below(m, n - i);
        out[i] = pool[j];
        pool[j] = pool[n - i - 1];
    }
    hh_free(pool);
}

/* ... and for a large one: draws again what was drawn before; a table of twice the sample remembers. */
static void sample_with_set(hh_mt *m, int64_t n, int64_t k, int64_t *out) {
    uint64_t size = 8;
    while (size < 2 * (uint64_t)k) size *= 2;
    int64_t *set = hh_alloc(size * sizeof *set); /* holds value + 1 */
    for (int64_t i = 0; i < k;) {
        int64_t j = hh_mt_below(m, n);
        uint64_t at = (uint64_t)j * UINT64_C(0x9E3779B97F4A7C15) >> 32 & (size - 1);
        while (set[at] && set[at] != j + 1) at = (at + 1) & (size - 1);
        if (set[at]) continue;
        set[at] = j + 1;
        out[i++] = j;
    }
    hh_free(set);
}

void hh_mt_sample(hh_mt *m, int64_t n, int64_t k, int64_t *out) {
    HH_ASSERT(k >= 0 && k <= n);
    /* Which of the two ways is Python's choice and decides what is drawn. */
    double set_size = 21;
    if (k > 5) set_size += pow(4, ceil(log(3.0 * (double)k) / log(4.0)));
    if ((double)n <= set_size)
        sample_from_pool(m, n, k, out);
    else
        sample_with_set(m, n, k, out);
}

void hh_uuid4_text(const uint32_t bits[4], char out[37]) {
    const uint32_t w1 = (bits[1] & 0x3fffffffu) | 0x80000000u; /* RFC 4122's variant */
    const uint32_t w2 = (bits[2] & 0xffff0fffu) | 0x00004000u; /* version 4 */
    snprintf(out, 37, "%08x-%04x-%04x-%04x-%04x%08x", bits[3], w2 >> 16, w2 & 0xffff, w1 >> 16, w1 & 0xffff, bits[0]);
}

void hh_mt_uuid4(hh_mt *m, char out[37]) {
    uint32_t bits[4];
    for (int i = 0; i < 4; i++) bits[i] = next_u32(m);
    hh_uuid4_text(bits, out);
}
