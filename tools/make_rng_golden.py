#!/usr/bin/env python3
"""Writes tests/base/golden/random.txt: what Python's random.Random draws, one seed a line, for tests/base/test_rng.c."""
import random
import uuid

with open("tests/base/golden/random.txt", "w") as out:
    for seed in [0, 1, 2, 42, 2**32 - 1, 2**32, 123456789012345, 2**64 - 1]:
        r = random.Random(seed)
        words = [seed, "%.17g" % r.random()]
        words += [r.randint(1000000, 9999999) for _ in range(3)]
        words += [r.choice(range(97)) for _ in range(3)]
        words += [r.getrandbits(k) for k in (1, 32, 33, 64)]
        # Both ways of random.sample, and the border between them (n = 21 with k <= 5).
        for n, k in [(100, 5), (100, 30), (21, 5), (22, 5), (100000, 300)]:
            words += r.sample(range(n), k)
        shuffled = list(range(50))
        r.shuffle(shuffled)
        words += shuffled + [uuid.UUID(int=r.getrandbits(128), version=4)]
        print(*words, file=out)
