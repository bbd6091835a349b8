"""The KL and cross-entropy heads in torch, compiled, over chunks of tokens: the CSV lines of bench_loss.

Weights are bf16 and their gradients are summed in float32, as hydrahead's are."""
import torch
import torch.nn.functional as F


def kl_loss(x, w, xt, wt, target):
    z, zt = (x @ w.t()).float(), (xt @ wt.t()).float()
    return F.kl_div(F.log_softmax(z, -1), F.log_softmax(zt, -1), log_target=True, reduction="sum")


def ce_loss(x, w, xt, wt, target):
    return F.cross_entropy((x @ w.t()).float(), target, reduction="sum")


def run(model, what, loss, products, tokens, width, vocabulary, chunk):
    x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
    xt = torch.randn_like(x)
    w, wt = (0.05 * torch.randn(vocabulary, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    target = torch.arange(tokens, device="cuda") * 7919 % vocabulary
    dw, dx = torch.zeros(vocabulary, width, device="cuda"), torch.empty_like(x)
    compiled = torch.compile(loss)

    def step():
        for lo in range(0, tokens, chunk):
            xc, wc = x[lo:lo + chunk].detach().requires_grad_(), w.detach().requires_grad_()
            compiled(xc, wc, xt[lo:lo + chunk], wt, target[lo:lo + chunk]).backward()
            dx[lo:lo + chunk] = xc.grad
            dw.add_(wc.grad)

    times = []
    step()
    for _ in range(4):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        step()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    us = sorted(times)[1] * 1000
    flop = 2 * products * tokens * width * vocabulary
    print(f"torch,{model},{what},{tokens},{width},{vocabulary},{chunk},,{us:.0f},{1e-6 * flop / us:.1f},", flush=True)


for chunk in (2048, 4096):
    run("smollm2", "kl", kl_loss, 4, 65536, 576, 49152, chunk)
run("smollm2", "ce", ce_loss, 3, 65536, 576, 49152, 4096)
run("qwen3", "kl", kl_loss, 4, 8192, 2048, 151936, 1024)
