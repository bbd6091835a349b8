#!/usr/bin/env python3
"""Does the hybrid's reference read a checkpoint as hydrahead does? Compares the logits of both on arbitrary ids.

    python3 tools/check_hybrid.py --reference DIR CHECKPOINT ... [--tokens 100] [--program build/hydrahead]

DIR holds hydrahead_ref.py; needs torch, safetensors, numpy. Exit 1 when a checkpoint differs by more than
2e-5 of its largest logit, or by more than twice what PyTorch's own float32 differs from float64.
"""
import argparse, json, os, subprocess, sys, tempfile
import numpy as np
import torch

a = argparse.ArgumentParser()
a.add_argument('--reference', required=True)
a.add_argument('--tokens', type=int, default=100)
a.add_argument('--program', default='build/hydrahead')
a.add_argument('checkpoint', nargs='+')
a = a.parse_args()
sys.path.insert(0, a.reference)
import hydrahead_ref

bad = 0
for path in a.checkpoint:
    vocab = json.load(open(os.path.join(path, 'config.json')))['vocab_size']
    ids = [(i * 7919 + 13) % vocab for i in range(a.tokens)]
    want, single = (hydrahead_ref.HydraHead.from_dir(path, dtype=t)(torch.tensor([ids]))[0].double().numpy() for t in (torch.float64, torch.float32))
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, 'logits.npy')
        subprocess.run([a.program, 'logits', path, '--ids', ','.join(map(str, ids)), '--out', out, '--dtype', 'f32'], check=True)
        have = np.load(out)
    difference, rounding = (float(abs(x - want).max() / abs(want).max()) for x in (have, single))
    bad += not difference <= max(2e-5, 2 * rounding)
    print(f'{path}: {difference:.2e} of the largest logit (PyTorch in float32: {rounding:.2e})')
sys.exit(bool(bad))
