"""The row-wise ops in torch, compiled where torch has no kernel of its own: the CSV lines of bench_rows."""
import torch
import torch._functorch.config
import torch.nn.functional as F

from graph_time import microseconds

dev, bf = "cuda", torch.bfloat16
stream = torch.cuda.Stream()


def line(op, shape, us):
    print(f"torch,{op},{shape},{us:.1f},,", flush=True)


def rms(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def rope(x, cos, sin):
    u, v = x.float().chunk(2, -1)
    return torch.cat((u * cos - v * sin, v * cos + u * sin), -1).to(x.dtype)


def conv(x, w):
    return F.conv1d(F.pad(x.t().unsqueeze(0), (3, 0)), w, groups=x.shape[1])


torch._functorch.config.donated_buffer = False  # the backward runs again and again on the same graph
rms_c, swiglu_c, rope_c = torch.compile(rms), torch.compile(swiglu), torch.compile(rope)


def both(op, shape, f, *inputs):
    with torch.no_grad():
        line(op + "_fwd", shape, microseconds(lambda: f(*inputs), 10))
    inputs = [x.requires_grad_() for x in inputs]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = f(*inputs)
        dy = torch.randn_like(y)
    line(op + "_bwd", shape, microseconds(lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True), 3, stream))


for T, C in ((65536, 576), (16384, 2048), (2048, 2048)):
    x, w = torch.randn(T, C, device=dev, dtype=bf), torch.randn(C, device=dev, dtype=bf)
    with torch.no_grad():
        line("rmsnorm_fwd eager", f"{T}x{C}", microseconds(lambda: rms(x, w), 10))
    both("rmsnorm", f"{T}x{C}", rms_c, x, w)
for T, f in ((65536, 1536), (16384, 6144), (2048, 6144)):
    both("swiglu", f"{T}x{f}", swiglu_c, torch.randn(T, 2 * f, device=dev, dtype=bf))
for T, h, d, wide in ((65536, 9, 64, 2048), (16384, 16, 128, 8192), (2048, 16, 128, 8192)):
    x = torch.randn(T, wide, device=dev, dtype=bf)[:, :h * d].view(T, h, d)
    cos, sin = (torch.randn(T, 1, d // 2, device=dev) for _ in range(2))
    shape = f"{T}x{h}x{d} of {wide}"
    with torch.no_grad():
        line("rope", shape, microseconds(lambda: rope_c(x, cos, sin), 10))
        w = torch.randn(d, device=dev, dtype=bf)
        line("rmsnorm_fwd", shape, microseconds(lambda: rms_c(x, w), 10))
        taps = torch.randn(h * d, 1, 4, device=dev, dtype=bf)
        flat = torch.randn(T, h * d, device=dev, dtype=bf)
        line("conv_fwd", shape, microseconds(lambda: conv(flat, taps), 2))
p = torch.randn(134515008, device=dev, requires_grad=True)
p.grad = torch.randn_like(p)
optimizer = torch.optim.AdamW([p], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True, capturable=True)
line("adamw", "135M", microseconds(optimizer.step, 2))
with torch.no_grad():
    line("sum_squares", "135M", microseconds(lambda: torch.linalg.vector_norm(p), 3))
del optimizer, p
ids = (torch.exp(torch.rand(65536, device=dev) * torch.log(torch.tensor(49152.0))).long() * 7919) % 49152
w, dy = torch.randn(49152, 576, device=dev, dtype=bf), torch.randn(65536, 576, device=dev, dtype=bf)
line("embedding_fwd", "65536x576", microseconds(lambda: F.embedding(ids, w), 10))
line("embedding_bwd", "65536x576", microseconds(lambda: torch.ops.aten.embedding_dense_backward(dy, ids, 49152, -1, False), 3))
