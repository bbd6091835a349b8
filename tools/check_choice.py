#!/usr/bin/env python3
"""Checks `hydrahead eval choice` by an independent computation of lm-evaluation-harness's definitions with transformers.

    check_choice.py [--model nano] [--hf models/nano] [--data DIR] [--only FILE[,FILE]] [--items 200] [--threads 0] [--program build/hydrahead]

--hf is a Hugging Face directory, or a .gguf file (transformers dequantises it; needs the package gguf). Each option is run by itself, context and continuation in
one sequence, in float32. Compared: every log-likelihood, and acc, acc_norm, acc_bytes, perplexity. Needs torch, transformers, numpy.
"""
import argparse, glob, json, math, os, subprocess, sys, tempfile
import numpy as np, torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def load(path):
    if path.endswith('.gguf'):
        from gguf import GGUFReader
        from tokenizers import pre_tokenizers as pre
        d, f = os.path.split(path)
        tokenizer = AutoTokenizer.from_pretrained(d, gguf_file=f)
        if GGUFReader(path).fields['tokenizer.ggml.pre'].contents() == 'smollm':  # transformers leaves out that digits are split first
            tokenizer.backend_tokenizer.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
        return AutoModelForCausalLM.from_pretrained(d, gguf_file=f, dtype=torch.float32), tokenizer
    from transformers import PreTrainedTokenizerFast
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=path + '/tokenizer.json')
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), tokenizer


class Scorer:
    def __init__(self, path):
        self.model, self.tok = load(path)
        self.max_length = self.model.config.max_position_embeddings

    def encode(self, text): return self.tok(text, add_special_tokens=False)['input_ids']

    def score(self, context, continuation):  # HFLM's loglikelihood for one pair
        spaces = len(context) - len(context.rstrip())
        if spaces: context, continuation = context[:-spaces], context[-spaces:] + continuation
        whole = self.encode(context + continuation)
        target = whole[len(self.encode(context)):][-self.max_length:]  # the harness refuses a continuation longer than the model; here its end is scored
        inputs = whole[-(self.max_length + 1):][:-1]
        with torch.no_grad(): logp = self.model(torch.tensor([inputs])).logits[0, -len(target):].float().log_softmax(-1)
        t = torch.tensor(target)
        return logp.gather(1, t[:, None]).double().sum().item(), bool((logp.argmax(-1) == t).all())


def pairs(item):
    if 'choices' in item: return [(item['query'], ' ' + c) for c in item['choices']]
    if 'context_options' in item: return [(c, ' ' + item['continuation']) for c in item['context_options']]
    return [(item['context'], ' ' + item['continuation'])]


def metrics(items, scores):
    lls = [np.array([s[0] for s in row]) for row in scores]
    if 'context' in items[0]:
        return {'acc': np.mean([row[0][1] for row in scores]), 'perplexity': math.exp(-np.mean([l[0] for l in lls]))}
    out = {'acc': np.mean([np.argmax(l) == i['gold'] for l, i in zip(lls, items)])}
    if 'choices' in items[0]:
        out['acc_norm'] = np.mean([np.argmax(l / [len(c) for c in i['choices']]) == i['gold'] for l, i in zip(lls, items)])
        out['acc_bytes'] = np.mean([np.argmax(l / [len(c.encode()) for c in i['choices']]) == i['gold'] for l, i in zip(lls, items)])
    return out


def run(a, file):  # what hydrahead says of one file
    with tempfile.TemporaryDirectory() as d:
        subprocess.run([a.program, 'eval', 'choice', a.model, '--dtype', 'f32', '--limit', str(a.items), '--items', '--json', d + '/r.json', '-q', '--threads', str(a.threads), '--file', file],
                       check=True, stdout=subprocess.DEVNULL)
        return json.load(open(d + '/r.json'))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--model', default='nano'), p.add_argument('--hf', default='models/nano'), p.add_argument('--data', default='../shared/data/bench')
    p.add_argument('--items', type=int, default=200), p.add_argument('--only', default='', help='files whose names hold one of these'), p.add_argument('--threads', type=int, default=0, help='of both sides; 0: all'), p.add_argument('--program', default='build/hydrahead')
    a = p.parse_args()
    files = [f for f in sorted(glob.glob(a.data + '/*.jsonl')) if any(o in f for o in a.only.split(',')) and 'answer' not in json.loads(open(f).readline())]
    if not files: sys.exit(f'no choice files in {a.data}')
    if a.threads: torch.set_num_threads(a.threads)
    scorer, bad = Scorer(a.hf), 0
    for f in files:
        ours = run(a, f)
        name = os.path.basename(f).split('.')[0]
        items = [json.loads(x) for x in open(f)][:a.items]
        scores = [[scorer.score(*q) for q in pairs(i)] for i in items]
        difference = max(abs(s[0] - o) for row, mine in zip(scores, ours['items'][a.model][name]) for s, o in zip(row, mine))
        theirs, mine = metrics(items, scores), ours['models'][a.model][name]
        off = {k: (v, mine[k]) for k, v in theirs.items() if abs(v - mine[k]) > 1e-4 * max(1, abs(v))}
        bad += bool(off) or difference > 2e-2
        print(f'{name}: {len(items)} items, largest difference of a log-likelihood {difference:.2e}', {k: round(float(v), 4) for k, v in theirs.items()}, f'DIFFERENT: {off}' if off else 'equal', flush=True)
    sys.exit(f'{bad} files differ' if bad else 0)


if __name__ == '__main__': main()
