"""The gated delta rule's backward of flash-linear-attention (pip install fla-core einops) at the shapes of
bench/cuda/bench_gdn_bwd.cu: a forward with its backward, and the forward alone, each in a CUDA graph; the difference is
the backward, which recomputes the states that ours reads. CSV on stdout; stops after the seconds given.

    python3 bench/peers/fla_gdn_bwd.py [SECONDS [WIDTH]]
"""
import sys
import time

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule

from graph_time import microseconds

CASES = [  # sequences, tokens, heads, width
    (1, 8192, 16, 128),
    (32, 2048, 7, 64),
    (1, 32768, 16, 128),
    (1, 32768, 4, 128),
    (1, 65536, 7, 64),
]


def measure(spans, length, heads, width):
    torch.manual_seed(1)
    shape = (1, spans * length, heads)
    q, k, v, do = (torch.randn(*shape, width, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    q, k = (torch.nn.functional.normalize(x.float(), dim=-1).bfloat16() for x in (q, k))
    g = -0.05 * (0.5 + torch.rand(shape, device="cuda"))
    beta = 2 * torch.rand(shape, device="cuda")
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    offsets = torch.arange(spans + 1, device="cuda") * length if spans > 1 else None

    def forward():
        return chunk_gated_delta_rule(*inputs[:3], g=g, beta=beta, scale=width**-0.5, cu_seqlens=offsets)[0]

    both = microseconds(lambda: torch.autograd.grad(forward(), inputs, do), 4)
    return both, microseconds(forward, 4)


until = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 600)
print("who,spans,tokens,heads,width,both_us,forward_us,backward_us")
widths = [int(sys.argv[2])] if len(sys.argv) > 2 else [64, 128]
for case in [c for c in CASES if c[3] in widths]:
    if time.time() > until:
        print("out of time")
        break
    try:
        both, forward = measure(*case)
        print("fla", *case, f"{both:.1f}", f"{forward:.1f}", f"{both - forward:.1f}", sep=",", flush=True)
    except Exception as error:  # a peer that does not run is a line of the table
        print("fla", *case, f"{type(error).__name__}: {str(error)[:200]}", sep=",", flush=True)
