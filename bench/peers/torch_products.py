"""torch.matmul at the shapes of bench_products, the same CSV lines: `long` and `short`."""
import sys
import torch

SHAPES = [("smollm2", "in", 65536, 576, 960), ("smollm2", "in-hybrid", 65536, 576, 2000),
          ("smollm2", "out", 65536, 576, 576), ("smollm2", "gate_up", 65536, 576, 3072),
          ("smollm2", "down", 65536, 1536, 576), ("smollm2", "head", 4096, 576, 49152),
          ("qwen3", "in", 16384, 2048, 4096), ("qwen3", "in-hybrid", 16384, 2048, 8256),
          ("qwen3", "gate_up", 16384, 2048, 12288), ("qwen3", "down", 16384, 6144, 2048),
          ("qwen3", "head", 1024, 2048, 151936), ("cube", "8192", 8192, 8192, 8192)]
SHORT = [("smollm2", "in", 576, 960), ("smollm2", "gate_up", 576, 3072), ("smollm2", "down", 1536, 576),
         ("smollm2", "head", 576, 49152), ("qwen3", "in", 2048, 4096), ("qwen3", "out", 2048, 2048),
         ("qwen3", "gate_up", 2048, 12288), ("qwen3", "down", 6144, 2048), ("qwen3", "head", 2048, 151936)]


def time_graph(n, body):
    """Microseconds of body(i), as bench/cuda/timing.h measures them."""
    body(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(n):
            body(i)
    graph.replay()
    times = []
    while len(times) < 3 or (sum(times) < 100 and len(times) < 9):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times)[len(times) // 2] * 1000 / n


def run_long():
    for model, name, t, k, n in SHAPES:
        x, y = (torch.randn(t, c, device="cuda", dtype=torch.bfloat16) for c in (k, n))
        w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        dw = torch.empty_like(w)
        calls = {"fwd": lambda i: torch.matmul(x, w.t(), out=y), "bwd_input": lambda i: torch.matmul(y, w, out=x),
                 "bwd_weight": lambda i: torch.matmul(y.t(), x, out=dw)}
        for what, call in calls.items():
            us = time_graph(5, call)
            print(f"torch,{model},{name},{what},{t},{k},{n},{us:.1f},{2e-6 * t * k * n / us:.0f},", flush=True)


def run_short():
    for model, name, k, n in SHORT:
        copies = max(2, min(100, (1 << 30) // (2 * k * n)))
        w = torch.randn(copies, n, k, device="cuda", dtype=torch.bfloat16)
        for t in (1, 2, 4, 8, 16, 32, 64):
            x, y = (torch.randn(t, c, device="cuda", dtype=torch.bfloat16) for c in (k, n))
            us = time_graph(copies, lambda i: torch.matmul(x, w[i].t(), out=y))
            moved = 1e-3 * (2 * k * n + 2 * t * (k + n))
            print(f"torch,{model},{name},short,{t},{k},{n},{us:.2f},{moved / us:.0f},", flush=True)
        del w


what = sys.argv[1] if len(sys.argv) > 1 else "long"
{"long": run_long, "short": run_short}[what]()
