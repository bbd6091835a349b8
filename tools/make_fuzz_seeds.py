#!/usr/bin/env python3
"""Makes the seeds of tests/fuzz for the parsers of checkpoints: one small file for each way to be right or wrong."""
import json, os, shutil, struct

ROOT = 'tests/fuzz/seeds/'


def write(room, seeds):
    shutil.rmtree(ROOT + room, ignore_errors=True)
    os.makedirs(ROOT + room)
    for name, data in seeds.items():
        with open(ROOT + room + '/' + name, 'wb') as f:
            f.write(data)


# safetensors
def image(header, data=0, length=None):
    header = header.encode() if isinstance(header, str) else header
    return struct.pack('<Q', len(header) if length is None else length) + header + bytes(data)


def entry(name, dtype, shape, at):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{at}}}'


def one(dtype, shape, at, data):
    return image('{' + entry('w', dtype, shape, at) + '}', data)


def two(a, b, data):
    return image('{' + entry(*a) + ',' + entry(*b) + '}', data)


write('safetensors', {
    'good': image(' {"__metadata__":{"format":"pt"},' + entry('a', 'F32', '[2,2]', '[0,16]') + ',' + entry('s', 'F64', '[]', '[16,24]') + ','
                  + entry('e', 'BF16', '[2,0]', '[24,24]') + ',' + entry('h', 'F16', '[3]', '[24,30]') + '} ', 30),
    'header_larger': image('{}', 0, 1000), 'header_zero': image('{}', 0, 0), 'header_100mb': image('{}', 0, 100000001),
    'header_huge': image('{}', 0, 2 ** 63), 'not_utf8': image(b'{"a\xff":1}'), 'not_json': image('{"a":'), 'array': image('[]'),
    'nul': image(b'{}\0'), 'deep': image('{"a":' + '[' * 300), 'overflow': one('F32', '[4294967296,4294967296]', '[0,4]', 4),
    'zero_overflow': one('F32', '[0,4294967296,4294967296]', '[0,0]', 0), 'negative': one('F32', '[1]', '[-4,0]', 4), 'reversed': one('F32', '[1]', '[4,0]', 4), 'past_end': one('F32', '[2]', '[0,8]', 7),
    'mismatch': one('F32', '[1]', '[0,8]', 8), 'unknown_dtype': one('F31', '[1]', '[0,4]', 4), 'u8': one('U8', '[4]', '[0,4]', 4),
    'rank5': one('F32', '[1,1,1,1,1]', '[0,4]', 4), 'trailing': one('F32', '[1]', '[0,4]', 5),
    'hole': two(('a', 'F32', '[1]', '[0,4]'), ('b', 'F32', '[1]', '[8,12]'), 12),
    'overlap': two(('a', 'F32', '[2]', '[0,8]'), ('b', 'F32', '[1]', '[4,8]'), 8),
    'blocks': image('{"__metadata__":{"blocks.w":"q8_0","blocks.v":"q4_0"},' + entry('w', 'U8', '[2,34]', '[0,68]') + ','
                    + entry('v', 'U8', '[1,36]', '[68,104]') + '}', 104),
    'blocks_row': image('{"__metadata__":{"blocks.w":"q8_0"},' + entry('w', 'U8', '[2,33]', '[0,66]') + '}', 66),
    'blocks_type': image('{"__metadata__":{"blocks.w":"q9_0"},' + entry('w', 'U8', '[2,34]', '[0,68]') + '}', 68),
    'blocks_f32': image('{"__metadata__":{"blocks.w":"q8_0"},' + entry('w', 'F32', '[1,34]', '[0,136]') + '}', 136),
    'blocks_huge': image('{"__metadata__":{"blocks.w":"q4_0"},' + entry('w', 'U8', '[0,9223372036854775800]', '[0,0]') + '}', 0),
    'blocks_absent': image('{"__metadata__":{"blocks.w":"q8_0"}}', 0),
    'duplicate': two(('a', 'F32', '[1]', '[0,4]'), ('a', 'F32', '[1]', '[4,8]'), 8), 'empty': b'', 'short': b'\2\0\0',
})

# GGUF
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: 'B', I8: 'b', U16: 'H', I16: 'h', U32: 'I', I32: 'i', F32: 'f', BOOL: 'B', U64: 'Q', I64: 'q', F64: 'd'}


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack('<Q', len(s)) + s


def scalar(t, v):
    return text(v) if t == STRING else struct.pack('<' + PACK[t], v)


def key(name, t, v):
    return text(name) + struct.pack('<I', t) + scalar(t, v)


def array(name, t, values):
    return text(name) + struct.pack('<IIQ', ARRAY, t, len(values)) + b''.join(scalar(t, v) for v in values)


def info(name, dims, t, offset):
    return text(name) + struct.pack('<I', len(dims)) + b''.join(struct.pack('<Q', d) for d in dims) + struct.pack('<IQ', t, offset)


def gguf(keys, tensors=(), data=0, version=3, n_keys=None, n_tensors=None, align=32):
    head = b'GGUF' + struct.pack('<IQQ', version, len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head += b''.join(keys) + b''.join(tensors)
    return head + bytes(-len(head) % align) + bytes(data)


def model(arch='llama', extra=(), tensors=()):
    keys = [key('general.architecture', STRING, arch), key('general.file_type', U32, 1)]
    keys += [key(f'{arch}.{n}', U32, v) for n, v in (('block_count', 1), ('embedding_length', 8), ('feed_forward_length', 16), ('attention.head_count', 2),
                                                    ('attention.head_count_kv', 1), ('context_length', 64), ('rope.dimension_count', 4))]
    keys += [key(f'{arch}.attention.layer_norm_rms_epsilon', F32, 1e-5), key(f'{arch}.rope.freq_base', F32, 10000), key('tokenizer.ggml.eos_token_id', U32, 2)]
    keys += list(extra)
    return gguf(keys, [info('token_embd.weight', [8, 4], 0, 0)] + list(tensors), 128 + 32 * len(tensors))


every = [key('k%d' % t, t, b'abc' if t == STRING else 1) for t in (U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, U64, I64, F64)]
every += [array('a%d' % t, t, [b'x', b'', b'yz'] if t == STRING else [1, 0, 1]) for t in (U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, U64, I64, F64)]
write('gguf', {
    'good': gguf(every, [info('a', [32, 2], 8, 0), info('b', [3], 0, 96)], 128), 'v2': gguf(every, version=2), 'v1': gguf([], version=1), 'v4': gguf([], version=4),
    'big_endian': b'GGUF' + struct.pack('>IQQ', 3, 0, 0), 'empty': b'', 'magic': b'GGUX' + bytes(20),
    'count_overflow': gguf([], n_keys=2 ** 63), 'tensor_count': gguf([], n_tensors=2 ** 60),
    'dims5': gguf([], [info('a', [1, 1, 1, 1, 1], 0, 0)], 32), 'dim_overflow': gguf([], [info('a', [2 ** 33, 2 ** 33], 0, 0)], 32),
    'zero_overflow': gguf([], [info('a', [0, 2 ** 33, 2 ** 33], 0, 0)]), 'string_long': gguf([text('k') + struct.pack('<IQ', STRING, 2 ** 40)]), 'array_long': gguf([text('k') + struct.pack('<IIQ', ARRAY, U64, 2 ** 61)]),
    'array_nested': gguf([text('k') + struct.pack('<IIQ', ARRAY, ARRAY, 1)]), 'align_type': gguf([key('general.alignment', U64, 32)]),
    'align_zero': gguf([key('general.alignment', U32, 0)]), 'align_64': gguf([key('general.alignment', U32, 64)], [info('a', [2], 0, 0)], 8, align=64),
    'twice_key': gguf([key('k', U8, 1), key('k', U8, 1)]), 'twice_tensor': gguf([], [info('a', [2], 0, 0), info('a', [2], 0, 32)], 64),
    'type_unknown': gguf([], [info('a', [2], 99, 0)], 32), 'type_iq': gguf([], [info('a', [256], 16, 0)], 128), 'row_not_blocks': gguf([], [info('a', [31], 8, 0)], 64),
    'offset_off': gguf([], [info('a', [2], 0, 4)], 64), 'data_short': gguf([], [info('a', [64], 0, 0)], 64), 'bool_two': gguf([key('k', BOOL, 2)]),
    'llama': model(), 'qwen2': model('qwen2', (), [info('blk.0.attn_q.bias', [8], 0, 128)]), 'qwen3': model('qwen3', (), [info('blk.0.attn_q_norm.weight', [4], 0, 128)]),
    'yarn': model(extra=[key('llama.rope.scaling.type', STRING, 'yarn'), key('llama.rope.scaling.factor', F32, 4), key('llama.rope.scaling.original_context_length', U32, 16)]),
    'freqs': model(tensors=[info('rope_freqs.weight', [2], 0, 128)]),
})

# config.json
base = dict(model_type='llama', hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=100,
            max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act='silu', tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, torch_dtype='bfloat16')
hybrid = dict(full_attention_heads=[[0, 3], []], fusion='scale', log_scale_base=500, log_scale_in_training=False, beta_scale=2.0, fa_gate=True, gdn_conv=False,
              gdn_gate=False, version=1)
variants = {
    'llama': {}, 'qwen2': dict(model_type='qwen2', use_sliding_window=False, sliding_window=None), 'qwen3': dict(model_type='qwen3', head_dim=32, layer_types=['full_attention'] * 2),
    'v5': dict(dtype='float16', torch_dtype=None, rope_theta=None, rope_parameters=dict(rope_type='llama3', rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                                       original_max_position_embeddings=64)),
    'yarn': dict(rope_scaling=dict(type='yarn', factor=4.0, mscale=1.0, mscale_all_dim=0.8, beta_fast=16, truncate=False, original_max_position_embeddings=64)),
    'linear': dict(rope_scaling=dict(type='linear', factor=2)), 'dynamic': dict(rope_scaling=dict(type='dynamic', factor=2)),
    'hybrid': dict(model_type='hydrahead', base_model_type='llama', hydrahead=hybrid), 'hybrid_twice': dict(model_type='hydrahead', base_model_type='llama', hydrahead=dict(hybrid, full_attention_heads=[[0, 0], []])),
    'eos_list': dict(eos_token_id=[2, 3, 2], bos_token_id=None), 'sliding': dict(use_sliding_window=True), 'gelu': dict(hidden_act='gelu'), 'huge': dict(hidden_size=2 ** 62), 'negative': dict(vocab_size=-1),
    'text': dict(num_hidden_layers='two'), 'float': dict(num_hidden_layers=2.5), 'odd_groups': dict(num_key_value_heads=3),
}
seeds = {k: json.dumps({**base, **v}).encode() for k, v in variants.items()}
seeds.update(empty=b'', array=b'[]', twice=b'{"model_type":"llama","model_type":"llama"}', deep=b'{"a":' + b'[' * 200, huge_number=b'{"vocab_size":1e999}')
write('config', seeds)
