#!/usr/bin/env python3
"""Writes tests/eval/golden/golden.json: log-likelihoods of the items beside it, and a perplexity, by transformers on models/nano (see check_choice.py)."""
import gzip, json, math, os, sys
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT + '/tools')
import torch
from check_choice import Scorer, pairs

s, d = Scorer(ROOT + '/models/nano'), ROOT + '/tests/eval/golden/'
out = {}
for name in ('multiple', 'contexts', 'lastword'):
    items = [json.loads(x) for x in open(d + name + '.jsonl')]
    # the harness puts the end token where a context is empty
    out[name] = [[(s.score(*q) if q[0] else s.score('<|endoftext|>', q[1]))[0] for q in pairs(i)] for i in items]
text = gzip.open(ROOT + '/models/nano/text_valid.txt.gz', 'rt').read()[:2000]
ids, nll, n = s.encode(text), 0, 0
for i in range(0, len(ids), 128):
    x = torch.tensor(ids[i:i + 128])
    with torch.no_grad(): logp = s.model(x[None]).logits[0].log_softmax(-1)
    nll -= logp[:-1].gather(1, x[1:, None]).double().sum().item()
    n += len(x) - 1
out['perplexity'] = {'bytes': len(text.encode()), 'length': 128, 'tokens': n, 'value': math.exp(nll / n)}
json.dump(out, open(d + 'golden.json', 'w'), indent=1)
print(out)
