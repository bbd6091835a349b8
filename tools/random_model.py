#!/usr/bin/env python3
"""Writes a checkpoint of random bf16 weights, to measure speed and memory of a shape: dense, or a hybrid of drawn heads.

    python3 tools/random_model.py SHAPE OUT [--keep R:1] [--by heads|kv] [--seed N] [--tokenizer FILE]

SHAPE is qwen3-1.7b, smollm2-135m or a config.json. --keep 7:1 leaves one head in eight with full attention; --by kv draws whole
key/value heads with all their queries. Needs nothing but Python; 3.4 GB take some seconds. The values are one random block, repeated.
"""
import argparse, array, json, math, os, random, shutil

SHAPES = {
    'qwen3-1.7b': dict(architectures=['Qwen3ForCausalLM'], model_type='qwen3', hidden_size=2048, intermediate_size=6144, num_hidden_layers=28,
                       num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960,
                       rope_theta=1000000.0, rms_norm_eps=1e-6, hidden_act='silu', attention_bias=False, tie_word_embeddings=True),
    'smollm2-135m': dict(architectures=['LlamaForCausalLM'], model_type='llama', hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                         num_attention_heads=9, num_key_value_heads=3, head_dim=64, vocab_size=49152, max_position_embeddings=8192,
                         rope_theta=100000.0, rms_norm_eps=1e-5, hidden_act='silu', attention_bias=False, mlp_bias=False, tie_word_embeddings=True),
}
BLOCK = (1 << 18) + 8  # numbers; not a divisor of any matrix
WIDEST = {'matrix': 0.035, 'embedding': 1.0}  # a token's own embedding must show in its logits, or probing finds no pair of any effect


def draw_heads(c, keep, by, rng):
    """Kept query heads of every layer, drawn from all layers at once."""
    layers, heads, groups = c['num_hidden_layers'], c['num_attention_heads'], c['num_key_value_heads']
    n = layers * heads // (keep + 1)
    share = heads // groups
    kept = [[] for _ in range(layers)]
    if by == 'kv':
        for g in rng.sample(range(layers * groups), n // share):
            kept[g // groups] += range(g % groups * share, (g % groups + 1) * share)
    else:
        for h in rng.sample(range(layers * heads), n):
            kept[h // heads].append(h % heads)
    return [sorted(h) for h in kept]


def layer_params(c, fa):
    """(name, shape, kind) of a layer; fa: its kept heads, None in a dense model. Names as docs/FORMATS.md has them."""
    d, w, heads, groups = c['head_dim'], c['hidden_size'], c['num_attention_heads'], c['num_key_value_heads']
    qk_norm = c['model_type'] == 'qwen3'
    yield 'input_layernorm.weight', [w], 'one'
    if fa is None:
        branches = [('', heads, groups)]
    else:
        branches = [('fa.', len(fa), len({h * groups // heads for h in fa})), ('gdn.', heads - len(fa), heads - len(fa))]
    for branch, n, kv in branches:
        if not n:
            continue
        for part, count in ('q', n), ('k', kv), ('v', kv):
            yield f'self_attn.{branch}{part}_proj.weight', [count * d, w], 'matrix'
        if qk_norm:
            yield f'self_attn.{branch}q_norm.weight', [d], 'one'
            yield f'self_attn.{branch}k_norm.weight', [d], 'one'
        if branch == 'fa.':
            yield 'self_attn.fa.gate_proj.weight', [n * d, w], 'matrix'
            yield 'self_attn.fa.gate_proj.bias', [n * d], 'one'
        if branch == 'gdn.':
            yield 'self_attn.gdn.a_proj.weight', [n, w], 'small'
            yield 'self_attn.gdn.b_proj.weight', [n, w], 'small'
            yield 'self_attn.gdn.A_log', [n], 'A_log'
            yield 'self_attn.gdn.dt_bias', [n], 'dt_bias'
    if fa is not None:
        yield 'self_attn.head_scale', [heads], 'one'
    yield 'self_attn.o_proj.weight', [w, heads * d], 'matrix'
    yield 'post_attention_layernorm.weight', [w], 'one'
    yield 'mlp.gate_proj.weight', [c['intermediate_size'], w], 'matrix'
    yield 'mlp.up_proj.weight', [c['intermediate_size'], w], 'matrix'
    yield 'mlp.down_proj.weight', [w, c['intermediate_size']], 'matrix'


def all_params(c, kept):
    yield 'model.embed_tokens.weight', [c['vocab_size'], c['hidden_size']], 'embedding'
    for l in range(c['num_hidden_layers']):
        for name, shape, kind in layer_params(c, kept[l] if kept else None):
            yield f'model.layers.{l}.{name}', shape, kind
    yield 'model.norm.weight', [c['hidden_size']], 'one'
    if not c['tie_word_embeddings']:
        yield 'lm_head.weight', [c['vocab_size'], c['hidden_size']], 'matrix'


def small_values(kind, n, rng):
    if kind == 'one':
        return [1.0] * n
    if kind == 'A_log':
        return [math.log(1 + 15 * rng.random()) for _ in range(n)]
    if kind == 'dt_bias':
        return [math.log(math.expm1(math.exp(rng.uniform(math.log(1e-3), math.log(0.1))))) for _ in range(n)]
    return [rng.uniform(-0.03, 0.03) for _ in range(n)]


def random_block(rng, most):
    """bf16, the upper halves of float32."""
    low = array.array('f', (rng.uniform(-most, most) for _ in range(BLOCK))).tobytes()
    out = bytearray(2 * BLOCK)
    out[0::2], out[1::2] = low[2::4], low[3::4]
    return out


def write_weights(path, c, kept, rng):
    params = list(all_params(c, kept))
    header, at = {}, 0
    for name, shape, kind in params:
        n = math.prod(shape) * (2 if kind in WIDEST else 4)
        header[name] = dict(dtype='BF16' if kind in WIDEST else 'F32', shape=shape, data_offsets=[at, at + n])
        at += n
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    block = {kind: memoryview(random_block(rng, most) * 65) for kind, most in WIDEST.items()}
    with open(path, 'wb', buffering=0) as f:
        f.write(len(text).to_bytes(8, 'little') + text)
        for name, shape, kind in params:
            n = math.prod(shape)
            if kind not in WIDEST:
                f.write(array.array('f', small_values(kind, n, rng)).tobytes())
                continue
            left, start = 2 * n, 2 * rng.randrange(BLOCK)
            while left:
                left -= f.write(block[kind][start:start + min(left, 128 * BLOCK)])
    return at


a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument('shape')
a.add_argument('out')
a.add_argument('--keep', default='')
a.add_argument('--by', choices=['heads', 'kv'], default='heads')
a.add_argument('--seed', type=int, default=0)
a.add_argument('--tokenizer', default='')
a = a.parse_args()
config = dict(SHAPES[a.shape]) if a.shape in SHAPES else json.load(open(a.shape))
rng = random.Random(a.seed)
kept = draw_heads(config, int(a.keep.split(':')[0]), a.by, rng) if a.keep else None
config['torch_dtype'] = 'bfloat16'
if kept:
    config.update(architectures=['HydraHeadForCausalLM'], base_model_type=config['model_type'], model_type='hydrahead')
    config['hydrahead'] = dict(full_attention_heads=kept, fusion='scale', log_scale_base=500.0, log_scale_in_training=False, beta_scale=2.0,
                               fa_gate=True, gdn_conv=False, gdn_gate=False, version=1)
os.makedirs(a.out, exist_ok=True)
if a.tokenizer:
    shutil.copy(a.tokenizer, os.path.join(a.out, 'tokenizer.json'))
layout = dict(config, model_type=config.get('base_model_type', config['model_type']))
size = write_weights(os.path.join(a.out, 'model.safetensors'), layout, kept, rng)
with open(os.path.join(a.out, 'config.json'), 'w') as f:
    json.dump(config, f, indent=1)
what = f"{sum(map(len, kept))} of {config['num_hidden_layers'] * config['num_attention_heads']} heads keep full attention" if kept else 'dense'
print(f'{a.out}: {what}, {size / 1e9:.2f} GB')
