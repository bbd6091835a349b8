#!/usr/bin/env python3
"""Speed and memory of whole models on one GPU, beside their peers and floors: one JSON line a figure.

    python3 bench/gpu_model.py [SECTION ...] [--program build-cuda/hydrahead] [--work DIR] [--out FILE] [--shape qwen3-1.7b] [--tiny]
    python3 bench/gpu_model.py --table FILE      the figures that stand in FILE as a table for docs/SPEED.md

Sections: prefill train2k 7to1 probe 3to1 distill small smollm2 train16k plan (all by default); each stands alone, so that a run may be
cut into several, and a figure that stands in --out is not measured again. `small` are steps so short that launches bound them; `plan` is
memory alone, of small models and large. Models are random ones of the shape (tools/random_model.py), made in
--work when a section wants them. --tiny checks every command line on a model of nano's shape, on the CPU if --device says so.

Columns: `value` in `unit`; `floor` is what the card's arithmetic or bandwidth allows (787 TFLOP/s measured for bf16 products, 4.24 TB/s
measured copy) where it is derived here, `peer` what PyTorch 2.11 with cuDNN reached on one H200 (transformers for prefill and decode,
torch.compile for training), `target` what is aimed for. `memory` figures are the driver's count divided by what `plan` printed;
more than 5 % apart is exit status 1.
"""
import argparse, json, os, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COPY = 4.24e12
PEAK = 989e12
K = 1024
QWEN = 'qwen3-1.7b'
# tokens/s on one H200
PEER_PREFILL = {(QWEN, 4 * K): 97.1e3, (QWEN, 32 * K): 67.6e3, (QWEN, 128 * K): 28.5e3}
FLOOR_PREFILL = {(QWEN, 'dense', 4 * K): 250e3, (QWEN, 'dense', 32 * K): 110e3, (QWEN, 'dense', 128 * K): 39e3, (QWEN, '7to1', 512 * K): 512 * K / 7.8}
TARGET_PREFILL = {(QWEN, 'dense', n): 1.3 * v for (_, n), v in PEER_PREFILL.items()}
TARGET_PREFILL.update({(QWEN, '7to1', 512 * K): 512 * K / 9.5, (QWEN, '3to1', 512 * K): 512 * K / 16})
PEER_DECODE = {(QWEN, 'dense', 128 * K): 17}
PEER_TRAIN = {(QWEN, 8, 2 * K): 37.0e3, (QWEN, 2, 16 * K): 15.6e3, ('smollm2-135m', 'distill'): 72e3}

a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument('section', nargs='*')
a.add_argument('--program', default=os.path.join(ROOT, 'build-cuda/hydrahead'))
a.add_argument('--device', default='cuda')
a.add_argument('--work', default='/tmp/hydrahead-bench')
a.add_argument('--out', default='')
a.add_argument('--shape', default=QWEN)
a.add_argument('--tiny', action='store_true')
a.add_argument('--table', default='', metavar='FILE')
a = a.parse_args()
NANO = os.path.join(ROOT, 'models/nano')
T = 64 if a.tiny else 1  # lengths are divided by this
known = set()
rates = {}  # tokens/s of training, by figure
off = []  # memory that plan did not foretell
started = time.time()


def emit(figure, value, unit, peer=None, floor=None, target=None, **more):
    line = dict(figure=figure, value=float(f'{value:.5g}'), unit=unit, floor=floor and float(f'{floor:.4g}'), peer=peer,
                target=target and float(f'{target:.4g}'), at=round(time.time() - started, 1), **more)
    print(json.dumps(line), flush=True)
    if a.out:
        with open(a.out, 'a') as f:
            f.write(json.dumps(line) + '\n')


def say(text):
    print(f'# {time.time() - started:6.1f} s: {text}', file=sys.stderr, flush=True)


def call(*words):
    """The verb's JSON lines, or none: what failed is said and the rest goes on."""
    words = [a.program, *map(str, words), '--device', a.device]
    say(' '.join(words[1:]))
    p = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        say(f'exit {p.returncode}: ' + p.stderr.strip().replace('\r', '\n')[-600:])
    return [json.loads(l) for l in p.stdout.splitlines() if l.startswith('{')]


def model(shape, kind):
    path = os.path.join(a.work, f'{shape}-{kind}')
    if not os.path.exists(os.path.join(path, 'config.json')):  # it is written last
        keep = dict(dense=[], **{'3to1': ['--keep', '3:1'], '7to1': ['--keep', '7:1', '--by', 'kv']})[kind]
        what = os.path.join(NANO, 'config.json') if a.tiny or shape == 'nano' else shape
        subprocess.run([sys.executable, os.path.join(ROOT, 'tools/random_model.py'), what, path, *keep, '--tokenizer',
                        os.path.join(NANO, 'tokenizer.json')], check=True, stdout=sys.stderr)
    return path


def config(shape):
    with open(os.path.join(model(shape, 'dense'), 'config.json')) as f:
        return json.load(f)


def memory(name, lines, plan, **more):
    """The driver's count beside what plan printed."""
    used = [l['gpu_bytes'] for l in lines if 'gpu_bytes' in l]
    if used and plan:
        ratio = max(used) / plan[0]['total']
        if abs(ratio - 1) > 0.05:
            off.append(name)
        emit(f'{name} memory', ratio, 'of plan', target=1.0, gib=round(max(used) / 2**30, 3),
             plan_gib=round(plan[0]['total'] / 2**30, 3), **more)
    return max(used) / 2**30 if used else 0


def inference(shape, kind, contexts):
    """Prefill, decode and memory at several contexts."""
    contexts = [n // T for n in contexts if f'{shape} {kind} prefill {n // K}K' not in known]
    if not contexts:
        return
    path = model(shape, kind)
    lines = call('bench', path, '--contexts', ','.join(map(str, contexts)), '--decode', 8 if a.tiny else 64, '--json')
    for l in lines:
        n = l['context'] * T
        emit(f'{shape} {kind} prefill {n // K}K', l['prefill_tok_s'], 'tokens/s', PEER_PREFILL.get((shape, n)) if kind == 'dense' else None,
             FLOOR_PREFILL.get((shape, kind, n)), TARGET_PREFILL.get((shape, kind, n)), seconds=round(l['context'] / l['prefill_tok_s'], 3))
        plan = call('plan', path, '--ctx', l['context'] + (8 if a.tiny else 67), '--json')
        if plan:
            p = plan[0]
            floor = COPY / (p.get('weights', 0) + p.get('mapped', 0) + p['kv_cache'] + 2 * p.get('states', 0))
            emit(f'{shape} {kind} decode {n // K}K', l['decode_tok_s'], 'tokens/s', PEER_DECODE.get((shape, kind, n)), floor, 0.8 * floor)
        if l is lines[-1]:
            gib = memory(f'{shape} {kind} {n // K}K', lines, plan)
            if (shape, kind, n) == (QWEN, '7to1', 512 * K):
                emit(f'{shape} {kind} {n // K}K fits', gib, 'GiB', target=24)


def memory_of_run(shape, kind, context):
    if f'{shape} {kind} run {context // K}K memory' in known:
        return
    n, decode = context // T, 8 if a.tiny else 64
    lines = call('bench', model(shape, kind), '--contexts', n - decode, '--decode', decode, '--json')
    memory(f'{shape} {kind} run {context // K}K', lines, call('plan', model(shape, kind), '--ctx', n, '--json'))


def short_steps():
    """As they are launched, and recorded."""
    for recorded in False, True:
        training('smollm2-135m', '3to1', 1, 64, 'dense', steps=8, recorded=recorded)
        training('smollm2-135m', '3to1', 8, K, 'dense', steps=8, recorded=recorded)
        training('nano', '7to1', 1, 256, 'dense', steps=8, recorded=recorded)
        training('nano', '7to1', 16, 256, 'dense', steps=8, recorded=recorded)
        training('nano', 'dense', 16, 512, steps=8, recorded=recorded)


def flops_of_training(shape, sequences, length):
    """Of the dense model, as bench/peers counts them."""
    c = config(shape)
    w, d, l = c['hidden_size'], c['head_dim'], c['num_hidden_layers']
    h, g = c['num_attention_heads'], c['num_key_value_heads']
    n = l * (w * d * (2 * h + 2 * g) + 3 * w * c['intermediate_size']) + c['vocab_size'] * w
    return 6 * n * sequences * length + 3.5 * 4 * l * h * d * sequences * length * length / 2


def training(shape, kind, sequences, length, teacher=None, micro=0, steps=3, recorded=True):
    name = f"{shape} {kind} {'distil' if teacher else 'train'} {sequences}x{length}{'' if recorded else ' unrecorded'}"
    if name in known:
        return
    path, t = model(shape, kind), length // T
    words = ['bench', path, '--train', f'{sequences}x{t}', '--steps', 1 if a.tiny else steps, '--json']
    plan = ['plan', path, '--train', '--ctx', t, '--batch', sequences, '--json']
    if micro:
        words += ['--micro-tokens', micro // T]
        plan[4:7] = [t, '--batch', max(1, micro // length)]
    if not recorded and a.device != 'cpu':
        words += ['--recorded-tokens', 0]
    if teacher:
        words += ['--teacher', model(shape, teacher)]
        plan += ['--teacher', model(shape, teacher)]
    lines = call(*words)
    for l in lines:
        dense = kind == 'dense' and not teacher
        flops = flops_of_training(shape, sequences, length) / (sequences * length) if dense else 0
        more = dict(mfu=round(flops * l['train_tok_s'] / PEAK, 4)) if dense and not a.tiny else {}
        peer = PEER_TRAIN.get((shape, 'distill')) if teacher else PEER_TRAIN.get((shape, sequences, length)) if dense else None
        share = {2 * K: 0.5, 16 * K: 0.45}.get(length)
        target = 250e3 if teacher and shape == 'smollm2-135m' else share * PEAK / flops if dense and shape == QWEN and share else None
        if kind == '3to1' and length == 16 * K:
            target = 1.8 * rates.get(name.replace('3to1', 'dense'), 0) or None
        rates[name] = l['train_tok_s']
        floor = 900e3 if teacher and shape == 'smollm2-135m' else PEAK / flops if dense else None
        emit(name, l['train_tok_s'], 'tokens/s', peer, floor, target, ms_a_step=round(l['step_s'] * 1e3, 2), **more)
    memory(name, lines, call(*plan))


def probing(shape):
    """All heads' receiver scores of 40 pairs of 4K: pairs that differ in the middle and in their last token."""
    if f'{shape} probe 40x4K' in known:
        return
    path, pairs, length = model(shape, 'dense'), os.path.join(a.work, 'pairs.jsonl'), 4 * K // T
    with open(pairs, 'w') as f:
        for i in range(4 if a.tiny else 40):
            # words of the vocabulary that are one token each: letters behind line ends
            text = [f"\n{'ABCDEFGHIJKLMNOPRSTUVW'[(j * 7 + i) % 22]}" for j in range(length // 2 - 1)]
            other = list(text)
            other[(i * 37 + 5) % len(text)] = '\nX'
            f.write(json.dumps(dict(prompt=''.join(text) + '\nQ', corrupt=''.join(other) + '\nZ', answer='Q')) + '\n')
    out = os.path.join(a.work, 'probe')
    call('probe', path, '--pairs', pairs, '--senders', 0, '--out', out)
    with open(os.path.join(out, 'heads.json')) as f:
        heads = json.load(f)
    s = heads['seconds']
    used = sum(c['pairs_used'] for c in heads['capabilities'])
    emit(f'{shape} probe 40x4K', s['base_forwards'] + s['receivers'], 's', floor=s['base_forwards'], target=3 * s['base_forwards'],
         receivers_s=round(s['receivers'], 3), attribution_s=round(s['attribution'], 3), pairs_used=used,
         tokens=2 * length * used)


def number(x):
    return '' if x is None else f'{x:,.0f}' if x >= 100 else f'{x:.3g}'


def print_table(path):
    with open(path) as f:
        lines = [json.loads(l) for l in f]
    latest = {l['figure']: l for l in lines}
    print('| | measured | | peer | target | floor | share of target |\n|---|---|---|---|---|---|---|')
    for l in latest.values():
        if l['figure'].endswith('memory'):
            continue
        better = l['unit'] not in ('s', 'GiB')
        share = l['target'] and (l['value'] / l['target'] if better else l['target'] / l['value'])
        extra = f" ({100 * l['mfu']:.0f} % of 989 TFLOP/s)" if 'mfu' in l else ''
        print(f"| {l['figure']} | {number(l['value'])} {l['unit']}{extra} | {number(l.get('seconds'))}{' s' if 'seconds' in l else ''} | "
              f"{number(l['peer'])} | {number(l['target'])} | {number(l['floor'])} | {f'{share:.2f}' if share else ''} |")
    memory = [l for l in latest.values() if l['figure'].endswith('memory')]
    print('\n| memory | the driver counts | plan | ratio |\n|---|---|---|---|')
    for l in memory:
        print(f"| {l['figure'][:-7]} | {l['gib']:.2f} GiB | {l['plan_gib']:.2f} GiB | {l['value']:.4f} |")


SECTIONS = {
    'prefill': lambda: inference(a.shape, 'dense', [2 * K, 4 * K, 32 * K, 128 * K]),
    'train2k': lambda: training(a.shape, 'dense', 8, 2 * K),
    '7to1': lambda: inference(a.shape, '7to1', [4 * K, 32 * K, 128 * K, 512 * K]),
    'probe': lambda: probing(a.shape),
    '3to1': lambda: inference(a.shape, '3to1', [4 * K, 32 * K, 128 * K, 512 * K]),
    'distill': lambda: (training('smollm2-135m', '3to1', 32, 2 * K, 'dense'), training('smollm2-135m', '3to1', 64, K, 'dense'),
                        training('smollm2-135m', 'dense', 32, 2 * K)),
    'small': short_steps,
    'smollm2': lambda: (inference('smollm2-135m', 'dense', [2 * K, 4 * K, 32 * K, 128 * K]),
                        inference('smollm2-135m', '7to1', [4 * K, 32 * K, 128 * K, 512 * K])),
    'train16k': lambda: (training(a.shape, 'dense', 2, 16 * K, steps=2), training(a.shape, '3to1', 2, 16 * K, steps=2)),
    'plan': lambda: (memory_of_run('nano', 'dense', 8 * K), memory_of_run('nano', '7to1', 64 * K), memory_of_run('smollm2-135m', 'dense', 8 * K)),
}

if __name__ == '__main__':
    if a.table:
        print_table(a.table)
        sys.exit()
    wrong = [s for s in a.section if s not in SECTIONS]
    if wrong:
        sys.exit(f"no section {', '.join(wrong)}; there are {' '.join(SECTIONS)}")
    os.makedirs(a.work, exist_ok=True)
    if a.out and os.path.exists(a.out):
        with open(a.out) as f:
            known = {json.loads(l)['figure'] for l in f}
    for s in a.section or SECTIONS:
        try:
            SECTIONS[s]()
        except Exception as e:  # the other sections are worth having
            say(f'{s}: {type(e).__name__}: {e}')
    say('end')
    if off:
        sys.exit(f"more than 5 % from what plan says: {', '.join(off)}")
