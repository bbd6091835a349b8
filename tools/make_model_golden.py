#!/usr/bin/env python3
"""Golden vectors of tests/model: logits of random models by transformers (dense) and by the reference of the hybrid (PyTorch),
gradients by PyTorch in float64, and what transformers says of `nano` and of SmolLM2.

    python3 tools/make_model_golden.py --reference DIR
    python3 tools/make_model_golden.py --text FILE                                nano on the beginning of a text
    python3 tools/make_model_golden.py --smollm2 FILE.gguf --wikitext FILE        SmolLM2 on prompts and on WikiText-2's test set

DIR holds hydrahead_ref.py. Needs torch, transformers, safetensors, numpy (and gguf for SmolLM2). Weights are not stored: here and in
the tests they are filled by one formula from their names (see fill_value).
"""
import argparse, json, math, os, sys, tempfile
import numpy as np
import torch

M64 = (1 << 64) - 1


def name_hash(name):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & M64
    return h


def uniform(name, n):
    """n numbers in [-1, 1), each a multiple of 2^-23: splitmix64 of the name's hash and the index."""
    with np.errstate(over='ignore'):
        z = np.uint64(name_hash(name)) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1


def fill_value(name, shape):
    """The weight `name`, float32. Offset and scale by the last words of its name."""
    u = uniform(name, int(np.prod(shape)))
    rules = [('A_log', 1.0, 1.0), ('dt_bias', -3.0, 2.0), ('head_scale', 1.0, 0.5), ('conv.weight', 0.25, 0.5), ('norm.weight', 1.0, 0.25),
             ('layernorm.weight', 1.0, 0.25), ('embed_tokens.weight', 0.0, 1.0), ('.bias', 0.0, 0.25)]
    for suffix, offset, scale in rules:
        if name.endswith(suffix):
            return (offset + scale * u).astype(np.float32).reshape(shape)
    return (1.5 / math.sqrt(shape[1]) * u).astype(np.float32).reshape(shape)


def token_ids(name, n, vocab):
    return ((uniform('ids ' + name, n) + 1) / 2 * vocab).astype(np.int64)


def qwen3(**k):
    return dict(dict(model_type='qwen3', hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     head_dim=32, vocab_size=97, max_position_embeddings=128, rope_theta=10000.0, rms_norm_eps=1e-6, hidden_act='silu',
                     attention_bias=False, tie_word_embeddings=False), **k)


def llama(**k):
    return dict(dict(model_type='llama', hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     head_dim=32, vocab_size=131, max_position_embeddings=128, rope_theta=10000.0, rms_norm_eps=1e-5, hidden_act='silu',
                     attention_bias=False, mlp_bias=False, tie_word_embeddings=False), **k)


def qwen2(**k):
    c = dict(dict(model_type='qwen2', hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                  vocab_size=131, max_position_embeddings=128, rope_theta=1000000.0, rms_norm_eps=1e-6, hidden_act='silu',
                  tie_word_embeddings=False), **k)
    return c


LLAMA3 = dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=32)

DENSE = {
    'qwen3_gqa2': qwen3(),
    'qwen3_gqa1_tied': qwen3(num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True),
    'qwen3_gqa8': qwen3(num_attention_heads=8, num_key_value_heads=1),
    'qwen3_gqa3_d64': qwen3(num_attention_heads=3, num_key_value_heads=1, head_dim=64, vocab_size=131),
    'qwen3_d128_bias': qwen3(num_attention_heads=2, num_key_value_heads=1, head_dim=128, attention_bias=True, hidden_size=32, intermediate_size=40),
    'qwen3_yarn': qwen3(rope_scaling=dict(YARN, attention_factor=1.25)),
    'qwen2_gqa2': qwen2(),
    'qwen2_gqa1_tied': qwen2(num_attention_heads=2, num_key_value_heads=2, hidden_size=96, head_dim=48, tie_word_embeddings=True),
    'llama_gqa3_d64_tied': llama(num_attention_heads=3, num_key_value_heads=1, head_dim=64, hidden_size=96, tie_word_embeddings=True),
    'llama_biases': llama(attention_bias=True, mlp_bias=True),
    'llama_linear': llama(rope_scaling=dict(rope_type='linear', factor=4.0)),
    'llama_llama3': llama(rope_scaling=LLAMA3),
    'llama_yarn': llama(rope_scaling=YARN),
    'llama_yarn_whole': llama(rope_scaling=dict(YARN, truncate=False, beta_fast=16.0, beta_slow=2.0)),
    'llama_parameters': {k: v for k, v in llama(rope_parameters=dict(LLAMA3, rope_theta=50000.0)).items() if k != 'rope_theta'},
}


def hybrid(base, heads, **fields):
    hy = dict(full_attention_heads=heads, fusion='scale', log_scale_base=500, log_scale_in_training=False, beta_scale=2.0, fa_gate=True,
              gdn_conv=False, gdn_gate=False, version=1)
    hy.update(fields)
    return dict(base, base_model_type=base['model_type'], model_type='hydrahead', hydrahead=hy)


HYBRID = {
    'hybrid_default': hybrid(qwen3(), [[1], [0, 3]]),
    'hybrid_none_all': hybrid(qwen3(), [[], [0, 1, 2, 3]]),
    'hybrid_gate_everything': hybrid(qwen3(), [[2], [1, 2]], fusion='gate', gdn_conv=True, gdn_gate=True, log_scale_base=16, beta_scale=1.0),
    'hybrid_norm': hybrid(qwen3(num_attention_heads=8, num_key_value_heads=2), [[5, 1], [7]], fusion='norm', fa_gate=False, gdn_gate=True),
    'hybrid_plain': hybrid(qwen3(), [[3], []], fusion='none', gdn_conv=True, log_scale_base=0),
    'hybrid_llama': hybrid(llama(num_attention_heads=3, num_key_value_heads=1, head_dim=64), [[2], [0]]),
    'hybrid_qwen2_bias': hybrid(qwen2(num_attention_heads=4, num_key_value_heads=2, head_dim=32, hidden_size=128), [[1, 2], [3]], gdn_gate=True, gdn_conv=True),
}

SMALL = dict(hidden_size=16, intermediate_size=24, head_dim=8, vocab_size=31)
GRADIENTS = {
    'gradient_teacher': qwen3(**SMALL),
    'gradient_teacher_bias': dict(qwen2(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True), **dict(SMALL, head_dim=4, rope_theta=10000.0)),
    'gradient_default': hybrid(qwen3(**SMALL), [[1], [0, 3]]),
    'gradient_gate_everything': hybrid(qwen3(**SMALL), [[2], []], fusion='gate', gdn_conv=True, gdn_gate=True, log_scale_in_training=True, log_scale_base=16),
    'gradient_norm': hybrid(qwen3(**dict(SMALL, tie_word_embeddings=True)), [[0, 1, 2, 3], [2]], fusion='norm', fa_gate=False, beta_scale=1.0),
    'gradient_plain': hybrid(llama(**SMALL), [[3], [1, 2]], fusion='none', gdn_gate=True),
}


def parameters(c):
    """name -> shape of every tensor of a checkpoint with configuration c."""
    V, C, F, L, H = c['vocab_size'], c['hidden_size'], c['intermediate_size'], c['num_hidden_layers'], c['num_attention_heads']
    G = c['num_key_value_heads']
    D = c.get('head_dim') or C // H
    base, hy = c.get('base_model_type', c['model_type']), c.get('hydrahead')
    bias = base == 'qwen2' or c.get('attention_bias', False)
    out = {'model.embed_tokens.weight': (V, C), 'model.norm.weight': (C,)}
    if not c['tie_word_embeddings']:
        out['lm_head.weight'] = (V, C)
    for l in range(L):
        b = f'model.layers.{l}.'
        p = b + 'self_attn.'
        out[b + 'input_layernorm.weight'] = out[b + 'post_attention_layernorm.weight'] = (C,)
        for n, s in (('gate_proj', (F, C)), ('up_proj', (F, C)), ('down_proj', (C, F))):
            out[b + f'mlp.{n}.weight'] = s
            if c.get('mlp_bias'):
                out[b + f'mlp.{n}.bias'] = (s[0],)
        out[p + 'o_proj.weight'] = (C, H * D)
        if c.get('attention_bias'):
            out[p + 'o_proj.bias'] = (C,)

        def branch(prefix, nq, nk):
            for n, k in (('q', nq), ('k', nk), ('v', nk)):
                out[p + f'{prefix}{n}_proj.weight'] = (k * D, C)
                if bias:
                    out[p + f'{prefix}{n}_proj.bias'] = (k * D,)
            if base == 'qwen3':
                for n in 'qk':
                    out[p + f'{prefix}{n}_norm.weight'] = (D,)
        if not hy:
            branch('', H, G)
            continue
        fa = hy['full_attention_heads'][l]
        n = H - len(fa)
        if fa:
            branch('fa.', len(fa), len({h * G // H for h in fa}))
            if hy['fa_gate']:
                out[p + 'fa.gate_proj.weight'], out[p + 'fa.gate_proj.bias'] = (len(fa) * D, C), (len(fa) * D,)
        if n:
            branch('gdn.', n, n)
            out[p + 'gdn.a_proj.weight'] = out[p + 'gdn.b_proj.weight'] = (n, C)
            out[p + 'gdn.A_log'] = out[p + 'gdn.dt_bias'] = (n,)
            if hy['gdn_gate']:
                out[p + 'gdn.gate_proj.weight'], out[p + 'gdn.gate_proj.bias'] = (n * D, C), (n * D,)
            if hy['gdn_conv']:
                for k in 'qkv':
                    out[p + f'gdn.{k}_conv.weight'] = (n * D, 4)
        if hy['fusion'] == 'gate':
            out[p + 'head_gate.weight'] = (H, C)
        if hy['fusion'] == 'scale':
            out[p + 'head_scale'] = (H,)
    return out


def weights_of(c):
    return {n: torch.from_numpy(fill_value(n, s)) for n, s in parameters(c).items()}


def transformers_logits(c, ids):
    import transformers
    from safetensors.torch import save_file
    with tempfile.TemporaryDirectory() as d:
        save_file(weights_of(c), os.path.join(d, 'model.safetensors'), metadata={'format': 'pt'})
        json.dump(dict(c, architectures=[{'qwen3': 'Qwen3', 'qwen2': 'Qwen2', 'llama': 'Llama'}[c['model_type']] + 'ForCausalLM']),
                  open(os.path.join(d, 'config.json'), 'w'))
        m, info = transformers.AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32, attn_implementation='eager', output_loading_info=True)
        bad = {k: v for k, v in info.items() if v}
        assert not bad, bad
        with torch.no_grad():
            return m.eval()(torch.from_numpy(ids)[None]).logits[0].numpy()


def reference(c, dtype=torch.float64):
    return REF.HydraHead(c, weights_of(c), dtype)


def gradients(c, pieces):
    """Summed cross-entropy over packed sequences, and its gradient for every parameter."""
    m = reference(c)
    for w in m.w.values():
        w.requires_grad_(True)
    loss = 0
    for ids in pieces:
        y = m(torch.from_numpy(ids)[None], training=True)[0]
        loss = loss + torch.nn.functional.cross_entropy(y[:-1], torch.from_numpy(ids[1:]), reduction='sum')
    loss.backward()
    return loss.item(), {n: w.grad.numpy() for n, w in m.w.items()}


def make_random(out):
    cases, logits, at = [], [], 0
    for name, c in {**DENSE, **HYBRID}.items():
        T = 70 if 'hydrahead' in c else 40
        ids = token_ids(name, T, c['vocab_size'])
        y = transformers_logits(c, ids) if name in DENSE else reference(c)(torch.from_numpy(ids)[None])[0].numpy()
        y = y[::2 if T == 70 else 1].astype(np.float32)                      # every other row of the longer ones
        cases.append(dict(name=name, config=c, ids=ids.tolist(), rows=len(y), step=2 if T == 70 else 1, at=at))
        logits.append(y.ravel())
        at += y.size
        print(name, y.shape, 'largest', abs(y).max())
    np.concatenate(logits).astype('<f4').tofile(os.path.join(out, 'logits.f32'))
    grads, at = [], 0
    for name, c in GRADIENTS.items():
        ids = token_ids(name, 73, c['vocab_size'])
        pieces = [ids[:66], ids[66:67], ids[67:]]
        loss, g = gradients(c, pieces)
        names = sorted(g)
        cases.append(dict(name=name, config=c, ids=ids.tolist(), pieces=[len(p) for p in pieces], loss=loss, at=at,
                          parameters=[[n, int(g[n].size)] for n in names]))
        grads += [g[n].ravel() for n in names]
        at += sum(g[n].size for n in names)
        print(name, 'loss', loss, 'values', sum(g[n].size for n in names))
    np.concatenate(grads).astype('<f8').tofile(os.path.join(out, 'gradients.f64'))
    with open(os.path.join(out, 'models.json'), 'w') as f:
        f.write('[\n' + ',\n'.join(json.dumps(c) for c in cases) + '\n]\n')


def nll_of(y, ids):
    return torch.nn.functional.cross_entropy(y[:-1].double(), torch.as_tensor(ids[1:]), reduction='none').numpy()


def make_nano(out, model, text):
    import transformers
    m = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation='eager').eval()
    t = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(model, 'tokenizer.json'))
    ids = t(open(text, encoding='utf-8').read()[:4000], add_special_tokens=False).input_ids[:256]
    with torch.no_grad():
        y = m(torch.tensor([ids])).logits[0]
    rows = list(range(15, 256, 48))
    y[rows].numpy().astype('<f4').tofile(os.path.join(out, 'nano.f32'))
    json.dump(dict(ids=ids, rows=rows, nll=float(nll_of(y, ids).mean())), open(os.path.join(out, 'nano.json'), 'w'))


PROMPTS = ['The capital of France is', 'Water boils at a temperature of', 'Once upon a time, in a small village,', 'def fibonacci(n):', 'The three laws of motion say that',
           'To make a good cup of tea, you should first', 'In 1969, the first man', 'Photosynthesis is the process by which', 'My favourite book is about', '1, 1, 2, 3, 5, 8,']


def make_smollm2(out, gguf, wikitext):
    import transformers
    d, f = os.path.split(gguf)
    m = transformers.AutoModelForCausalLM.from_pretrained(d, gguf_file=f, dtype=torch.float32, attn_implementation='eager').eval()
    t = transformers.AutoTokenizer.from_pretrained(d, gguf_file=f)
    made = []
    for p in PROMPTS:
        ids = t(p, add_special_tokens=False).input_ids
        seq = torch.tensor([ids])
        past, new, cur = None, [], seq
        with torch.no_grad():
            for _ in range(64):                                              # plain arg max, no end token
                r = m(cur, past_key_values=past, use_cache=True)
                past, k = r.past_key_values, int(r.logits[0, -1].argmax())
                new.append(k)
                cur = torch.tensor([[k]])
        made.append(dict(prompt=p, ids=ids, greedy=new))
        print(repr(p), '->', repr(t.decode(new[:16])))
    text = open(wikitext, encoding='utf-8').read()
    ids = t(text[:20000], add_special_tokens=False).input_ids[:2048]
    nll, lengths = [], (64, 512)                                             # of the beginnings of each piece
    with torch.no_grad():
        for lo in range(0, len(ids), 512):
            piece = ids[lo:lo + 512]
            e = nll_of(m(torch.tensor([piece])).logits[0], piece)
            nll.append([float(e[:n - 1].mean()) for n in lengths])
    json.dump(dict(prompts=made, wikitext=dict(ids=ids, lengths=lengths, nll=nll)), open(os.path.join(out, 'smollm2.json'), 'w'))
    print('perplexity', math.exp(sum(e[-1] for e in nll) / len(nll)))


if __name__ == '__main__':
    a = argparse.ArgumentParser()
    a.add_argument('--reference')
    a.add_argument('--nano', default='models/nano')
    a.add_argument('--text')
    a.add_argument('--smollm2')
    a.add_argument('--wikitext')
    a.add_argument('--out', default='tests/model/golden')
    a = a.parse_args()
    if a.reference:
        sys.path.insert(0, a.reference)
        import hydrahead_ref as REF
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(0)
    if not a.text and not a.smollm2:
        make_random(a.out)
    if a.text:
        make_nano(a.out, a.nano, a.text)
    if a.smollm2:
        make_smollm2(a.out, a.smollm2, a.wikitext)
