#!/usr/bin/env python3
"""Makes tests/tensor/golden/blocks.bin: GGUF blocks and what the `gguf` package says they hold.

Records: name (8 bytes, zero-padded), bytes and values (uint32 each), the blocks, the float32 values. For "q8_0", ... the
values are the dequantised blocks; for "to q8_0", ... they are the input that was quantised into the blocks.
"""
import struct
import numpy as np
from gguf import GGMLQuantizationType as T, quants
from gguf.constants import GGML_QUANT_SIZES

rng = np.random.default_rng(1)
HALVES = {'Q8_0': [0], 'Q4_0': [0], 'Q4_1': [0, 2], 'Q5_0': [0], 'Q5_1': [0, 2], 'Q4_K': [0, 2], 'Q5_K': [0, 2], 'Q6_K': [208]}


def record(out, name, blocks, values):
    blocks, values = blocks.astype(np.uint8).tobytes(), values.astype('<f4').tobytes()
    out.write(name.encode().ljust(8, b'\0') + struct.pack('<II', len(blocks), len(values) // 4) + blocks + values)


with open('tests/tensor/golden/blocks.bin', 'wb') as out:
    for name, halves in HALVES.items():
        block, size = GGML_QUANT_SIZES[T[name]]
        n = 6 if block == 32 else 3
        b = rng.integers(0, 256, (n, size), dtype=np.uint8)
        for at in halves:  # scales: normal, negative, zero, subnormal, large
            d = np.array([0.01, -0.37, 0.0, 3e-7, 211.0, 1.0], np.float16)[:n]
            b[:, at:at + 2] = d.view(np.uint8).reshape(n, 2)
        record(out, name.lower(), b, quants.dequantize(b, T[name]).reshape(-1))
    for name in ('Q8_0', 'Q4_0', 'Q4_1'):
        x = rng.standard_normal((8, 32)).astype(np.float32)
        x[1] *= 1e-3
        x[2] = 0
        x[3] = 0.25
        x[4] = -np.abs(x[4])
        x[5, 7] = 40
        x[6] = np.arange(32) - 16
        x[7] = np.round(x[7] * 4) / 4
        record(out, 'to ' + name.lower(), quants.quantize(x, T[name]), x.reshape(-1))
