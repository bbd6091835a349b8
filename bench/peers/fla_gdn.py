"""Gated DeltaNet's forward of flash-linear-attention's Triton kernels (pip install fla-core einops) at the shapes of
bench/cuda/bench_gdn.cu, calls in CUDA graphs. Prints case and microseconds; stops after the seconds given (Triton
compiles and tunes on first use, some hundred variants a width: several at once, each with its WIDTH, fill the cache for a
run that measures).

    python3 bench/peers/fla_gdn.py [SECONDS [WIDTH]]
"""
import sys
import time

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

from graph_time import microseconds

CASES = [  # heads, width, sequences, length
    (16, 128, 1, 32768),
    (7, 64, 32, 2048),
    (16, 128, 16, 1),
    (16, 128, 1, 8192),
    (16, 128, 64, 1),
    (16, 128, 1, 2048),
    (16, 128, 1, 16384),
    (7, 64, 1, 32768),
    (16, 128, 8, 4096),
    (16, 128, 1, 1),
    (7, 64, 64, 1),
]


def measure(heads, width, batch, length):
    torch.manual_seed(1)
    packed = batch > 1 and length > 1  # sequences one behind another, as ours lie
    shape = (1, batch * length, heads) if packed else (batch, length, heads)
    q, k, v = (torch.randn(*shape, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    q, k = (torch.nn.functional.normalize(x.float(), dim=-1).bfloat16() for x in (q, k))
    g = -0.05 * torch.rand(shape, device="cuda")
    beta = torch.rand(shape, device="cuda")
    state = 0.1 * torch.randn(batch, heads, width, width, device="cuda")
    offsets = torch.arange(batch + 1, device="cuda") * length if packed else None
    f = fused_recurrent_gated_delta_rule if length == 1 else chunk_gated_delta_rule
    return microseconds(lambda: f(q, k, v, g=g, beta=beta, scale=width**-0.5, initial_state=state,
                                  output_final_state=True, cu_seqlens=offsets), 100 if length == 1 else 10)


def main():
    until = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 600)
    widths = [int(sys.argv[2])] if len(sys.argv) > 2 else [64, 128]
    with torch.no_grad():
        for heads, width, batch, length in [c for c in CASES if c[1] in widths]:
            if time.time() > until:
                print("out of time", flush=True)
                break
            name = f"{heads} heads D{width} {batch}x{length}"
            try:
                print(f"{name:28s} {measure(heads, width, batch, length):10.2f}", flush=True)
            except Exception as error:  # a peer that does not run is a line of the table
                print(f"{name:28s} {type(error).__name__}: {str(error)[:200]}", flush=True)


main()
