"""Softmax attention of PyTorch (cuDNN, and its flash kernels) at the shapes of bench/cuda/bench_attention.c: the same
method, calls in CUDA graphs. Prints case, backend, microseconds."""
import sys
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CASES = [  # name, kind, heads, KV heads, width, batch, length
    ("fwd 16 heads D128 32K", "fwd", 16, 16, 128, 1, 32768),
    ("fwd+bwd 16 heads D128 32K", "bwd", 16, 16, 128, 1, 32768),
    ("fwd 16/8 heads D128 4K", "fwd", 16, 8, 128, 1, 4096),
    ("fwd+bwd 16/8 heads D128 8x2K", "bwd", 16, 8, 128, 8, 2048),
    ("fwd 9 heads D64 8K", "fwd", 9, 9, 64, 1, 8192),
    ("fwd+bwd 9 heads D64 8K", "bwd", 9, 9, 64, 1, 8192),
    ("fwd+bwd 9/3 heads D64 32x2K", "bwd", 9, 3, 64, 32, 2048),
    ("fwd 2 heads D128 128K", "fwd", 2, 2, 128, 1, 131072),
    ("decode 16/8 heads D128 128K", "decode", 16, 8, 128, 1, 131072),
    ("decode 2/1 heads D128 512K", "decode", 2, 1, 128, 1, 524288),
    ("decode 3/1 heads D64 128K", "decode", 3, 1, 64, 1, 131072),
    ("decode 16/8 heads D128 4K batch 64", "decode", 16, 8, 128, 64, 4096),
]


def microseconds(call):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    n = max(1, min(50, int(10 / max(start.elapsed_time(end), 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(n):
            call()
    graph.replay()
    best = float("inf")
    for _ in range(3):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end))
    return best * 1000 / n


def case(kind, heads, kv_heads, width, batch, length, backend):
    torch.manual_seed(1)
    make = lambda h, t: (torch.rand(batch, t, h, width, device="cuda", dtype=torch.bfloat16) * 2 - 1).transpose(1, 2)
    q, k, v = make(heads, 1 if kind == "decode" else length), make(kv_heads, length), make(kv_heads, length)
    options = dict(is_causal=kind != "decode", enable_gqa=heads != kv_heads)
    with sdpa_kernel(backend):
        if kind != "bwd":
            return microseconds(lambda: F.scaled_dot_product_attention(q, k, v, **options))
        for t in (q, k, v):
            t.requires_grad_(True)
        g = make(heads, length)
        def step():
            F.scaled_dot_product_attention(q, k, v, **options).backward(g)
            q.grad = k.grad = v.grad = None
        return microseconds(step)


for name, *shape in CASES:
    if len(sys.argv) > 1 and sys.argv[1] not in name:
        continue
    for label, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        try:
            print(f"{name},{label},{case(*shape, backend):.1f}", flush=True)
        except Exception as e:
            print(f"{name},{label},none ({str(e).splitlines()[0][:80]})", flush=True)
        torch.cuda.empty_cache()
