/* Random numbers that repeat: the same seed gives the same draws on every machine.
 *
 * hh_rng is xoshiro256** seeded by splitmix64: for initial weights, sampling, batches. Its whole state is a value and
 * can be saved. hh_mt is Python's `random.Random` (Mersenne Twister with Python's way of seeding by an int and of
 * drawing), so that RULER's samples can be made byte for byte.
 */
#ifndef HH_BASE_RNG_H
#define HH_BASE_RNG_H

#include <stdint.h>

typedef struct hh_rng {
    uint64_t s[4];
} hh_rng;
hh_rng hh_rng_seeded(uint64_t seed);
/* An independent stream for item `index` of the same seed: batches and initial weights do not depend on order. */
hh_rng hh_rng_stream(uint64_t seed, uint64_t index);
uint64_t hh_rng_u64(hh_rng *r);
double hh_rng_uniform(hh_rng *r);           /* [0, 1) with 53 bits */
int64_t hh_rng_below(hh_rng *r, int64_t n); /* [0, n), unbiased */
double hh_rng_normal(hh_rng *r);            /* standard normal */
void hh_rng_shuffle(hh_rng *r, int64_t *a, int64_t n);

typedef struct hh_mt {
    uint32_t state[624];
    int index;
} hh_mt;
void hh_mt_seed(hh_mt *m, uint64_t seed);                        /* random.seed(seed) */
double hh_mt_random(hh_mt *m);                                   /* random.random() */
uint64_t hh_mt_getrandbits(hh_mt *m, int bits);                  /* random.getrandbits(bits), 1..64 */
int64_t hh_mt_below(hh_mt *m, int64_t n);                        /* _randbelow(n): choice(seq) is seq[below(len)] */
int64_t hh_mt_randint(hh_mt *m, int64_t lo, int64_t hi);         /* random.randint(lo, hi), both included */
void hh_mt_shuffle(hh_mt *m, int64_t *a, int64_t n);             /* random.shuffle */
void hh_mt_sample(hh_mt *m, int64_t n, int64_t k, int64_t *out); /* random.sample(range(n), k) */
/* A random UUID (version 4) as text, of 128 random bits, least significant word first. */
void hh_uuid4_text(const uint32_t bits[4], char out[37]);
void hh_mt_uuid4(hh_mt *m, char out[37]); /* str(uuid.UUID(int=random.getrandbits(128), version=4)) */

#endif
