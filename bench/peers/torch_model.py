#!/usr/bin/env python3
"""Whole models in PyTorch alone, for the figures of bench/gpu_model.py on the same card: prefill and decode as transformers does them
(eager, cuDNN's attention, logits of the last token), decode as a CUDA graph over a static cache, and training steps by torch.compile with
a loss in chunks and the fused AdamW. One JSON line a figure.

    python3 bench/peers/torch_model.py [prefill] [decode] [train2k] [train16k] [smollm2] [--tiny]
"""
import json, sys, time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend
from torch.utils.checkpoint import checkpoint

TINY = '--tiny' in sys.argv
WANT = [w for w in sys.argv[1:] if not w.startswith('--')] or ['prefill', 'decode', 'train2k', 'train16k', 'smollm2']
DEV = 'cuda' if torch.cuda.is_available() else 'cpu'
BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
SHAPES = {'qwen3-1.7b': (28, 2048, 16, 8, 128, 6144, 151936, True), 'smollm2-135m': (30, 576, 9, 3, 64, 1536, 49152, False)}
if TINY:
    SHAPES = {k: (2, 64, 4, 2, 16, 96, 256, v[7]) for k, v in SHAPES.items()}
T = 64 if TINY else 1


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.w, 1e-6)


class Block(nn.Module):
    def __init__(self, width, heads, groups, d, ffn, qk_norm):
        super().__init__()
        self.h, self.g, self.d = heads, groups, d
        self.qkv = nn.Linear(width, (heads + 2 * groups) * d, bias=False)
        self.o, self.up, self.down = nn.Linear(heads * d, width, bias=False), nn.Linear(width, 2 * ffn, bias=False), nn.Linear(ffn, width, bias=False)
        self.n1, self.n2 = Norm(width), Norm(width)
        self.qn, self.kn = (Norm(d), Norm(d)) if qk_norm else (None, None)

    def forward(self, x, cos, sin, cache=None, at=None, mask=None):
        B, n, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).split([self.h * self.d, self.g * self.d, self.g * self.d], -1)
        q, k, v = q.view(B, n, self.h, self.d), k.view(B, n, self.g, self.d), v.view(B, n, self.g, self.d)
        if self.qn is not None:
            q, k = self.qn(q), self.kn(k)
        q, k = (torch.cat([a * cos - b * sin, b * cos + a * sin], -1) for a, b in (q.chunk(2, -1), k.chunk(2, -1)))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if cache is not None:
            cache[0].index_copy_(2, at, k)
            cache[1].index_copy_(2, at, v)
            if n == 1:
                k, v = cache
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        x = x + self.o(o.transpose(1, 2).reshape(B, n, -1))
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        layers, width, h, g, d, ffn, vocab, qk = shape
        self.shape = shape
        self.emb = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, h, g, d, ffn, qk) for _ in range(layers))
        self.norm = Norm(width)
        self.register_buffer('freq', 1e6 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d), persistent=False)

    def forward(self, ids, at, caches=None, mask=None):
        angle = torch.outer(at.float(), self.freq.float())[:, None]
        x = self.emb(ids)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for i, b in enumerate(self.blocks):
            x = b(x, cos, sin, caches[i] if caches else None, at, mask)
        return self.norm(x)


def make(shape):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEV):
        m = Model(SHAPES[shape])
    torch.set_default_dtype(torch.float32)
    for p in m.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=0.02)
    return m


def wait():
    if DEV == 'cuda':
        torch.cuda.synchronize()


def best(f, n):
    f()
    wait()
    times = []
    for _ in range(n):
        t = time.time()
        f()
        wait()
        times.append(time.time() - t)
    return min(times)


def emit(figure, value, **more):
    mem = torch.cuda.max_memory_allocated() / 2**30 if DEV == 'cuda' else 0
    print(json.dumps(dict(who='torch', figure=figure, value=float(f'{value:.5g}'), unit='tokens/s', gib=round(mem, 2), **more)), flush=True)


def inference(shape, prefill, decode, lengths=(4096, 32768, 131072)):
    m = make(shape).eval()
    layers, width, h, g, d, ffn, vocab, _ = SHAPES[shape]
    with torch.inference_mode(), sdpa_kernel(BACKENDS):
        for n in lengths:
            n //= T
            ids, at = torch.randint(0, vocab, (1, n), device=DEV), torch.arange(n, device=DEV)
            caches = [(torch.zeros(1, g, n + 64, d, device=DEV, dtype=torch.bfloat16), torch.zeros(1, g, n + 64, d, device=DEV, dtype=torch.bfloat16))
                      for _ in range(layers)]
            name = f'{n * T // 1024}K'
            if prefill:
                t = best(lambda: F.linear(m(ids, at, caches)[:, -1:], m.emb.weight), 3 if n * T < 1e5 else 1)
                emit(f'{shape} dense prefill {name}', n / t)
            if not decode:
                continue
            one, pos = ids[:, :1].clone(), torch.tensor([n], device=DEV)
            mask = torch.arange(n + 64, device=DEV)[None, None, None] <= n

            def step():
                return F.linear(m(one, pos, caches, mask), m.emb.weight).argmax(-1)
            emit(f'{shape} dense decode {name}', 1 / best(step, 5), how='eager')
            if DEV == 'cuda':
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step()
                emit(f'{shape} dense decode {name}', 1 / best(graph.replay, 10), how='CUDA graph')


def training(shape, B, n):
    m = make(shape).train()
    n //= T
    layers, width, h, g, d, ffn, vocab, _ = SHAPES[shape]
    opt = torch.optim.AdamW(m.parameters(), lr=1e-4, fused=DEV == 'cuda')
    f = torch.compile(m) if DEV == 'cuda' else m
    ids, at = torch.randint(0, vocab, (B, n), device=DEV), torch.arange(n, device=DEV)

    def part(a, b):
        return F.cross_entropy(F.linear(a, m.emb.weight).float(), b, reduction='sum')

    def step():
        x = f(ids, at).flatten(0, 1)
        loss = sum(checkpoint(part, a, b, use_reentrant=False) for a, b in zip(x.split(8192), ids.flatten().split(8192)))
        (loss / ids.numel()).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
    with sdpa_kernel(BACKENDS[:2] if DEV == 'cuda' else BACKENDS):
        t = best(step, 3)
    count = sum(p.numel() for p in m.parameters())
    flops = 6 * count * B * n + 3.5 * 4 * layers * h * d * B * n * n / 2
    emit(f'{shape} dense train {B}x{n * T}', B * n / t, ms_a_step=round(t * 1e3, 2), mfu=round(flops / t / 989e12, 4), how='torch.compile, bf16 weights')


JOBS = {
    'prefill': lambda: inference('qwen3-1.7b', True, 'decode' in WANT),
    'decode': lambda: None if 'prefill' in WANT else inference('qwen3-1.7b', False, True),
    'train2k': lambda: training('qwen3-1.7b', 8, 2048),
    'train16k': lambda: training('qwen3-1.7b', 2, 16384),
    'smollm2': lambda: (inference('smollm2-135m', True, True), training('smollm2-135m', 32, 2048)),
}
for w in WANT:
    try:
        JOBS[w]()
    except Exception as e:
        print(f'# {w}: {type(e).__name__}: {str(e)[:300]}', file=sys.stderr, flush=True)
    if DEV == 'cuda':
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
