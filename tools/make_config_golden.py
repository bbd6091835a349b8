#!/usr/bin/env python3
"""Makes tests/model/golden/rope.json: configurations, and the rotary frequencies that transformers computes for them.

Each case has the configuration as an older transformers wrote it ("written4": rope_theta + rope_scaling, torch_dtype), as this
one writes it ("written5": rope_parameters, dtype), and inv_freq with the factor on cos and sin.
"""
import json, os, tempfile
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

EMBEDDING = {'llama': LlamaRotaryEmbedding, 'qwen2': Qwen2RotaryEmbedding, 'qwen3': Qwen3RotaryEmbedding}
BASE = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=1000, rms_norm_eps=1e-5,
            hidden_act='silu', tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, torch_dtype='bfloat16')
CASES = {
    'llama plain': dict(model_type='llama', max_position_embeddings=2048, rope_theta=10000.0, rope_scaling=None),
    'llama wide heads': dict(model_type='llama', max_position_embeddings=8192, rope_theta=500000.0, head_dim=128),
    'smollm2': dict(model_type='llama', max_position_embeddings=8192, rope_theta=100000, rope_scaling=None, rope_interleaved=False, is_llama_config=True, pad_token_id=2),
    'llama linear': dict(model_type='llama', max_position_embeddings=4096, rope_theta=10000.0, rope_scaling=dict(type='linear', factor=4.0)),
    'llama 3.1': dict(model_type='llama', max_position_embeddings=131072, rope_theta=500000.0, head_dim=128,
                      rope_scaling=dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    'llama 3.2': dict(model_type='llama', max_position_embeddings=131072, rope_theta=500000.0,
                      rope_scaling=dict(rope_type='llama3', factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    'qwen2 yarn': dict(model_type='qwen2', max_position_embeddings=32768, rope_theta=1000000.0, use_sliding_window=False, sliding_window=131072, max_window_layers=2,
                       rope_scaling=dict(type='yarn', factor=4.0, original_max_position_embeddings=32768)),
    'qwen3 plain': dict(model_type='qwen3', max_position_embeddings=40960, rope_theta=1000000, head_dim=128, attention_bias=False, use_sliding_window=False, sliding_window=None, max_window_layers=2),
    'qwen3 yarn, length of its own': dict(model_type='qwen3', max_position_embeddings=131072, rope_theta=1000000.0, head_dim=128,
                                          rope_scaling=dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=32768, attention_factor=1.25)),
    'qwen3 yarn, betas': dict(model_type='qwen3', max_position_embeddings=4096, rope_theta=10000.0, head_dim=64,
                              rope_scaling=dict(rope_type='yarn', factor=8.0, beta_fast=24.0, beta_slow=2.0)),
    'llama yarn, mscale': dict(model_type='llama', max_position_embeddings=4096, rope_theta=10000.0,
                               rope_scaling=dict(rope_type='yarn', factor=16.0, mscale=1.0, mscale_all_dim=0.7, original_max_position_embeddings=256)),
    'llama yarn, not truncated': dict(model_type='llama', max_position_embeddings=16384, rope_theta=150000.0,
                                      rope_scaling=dict(rope_type='yarn', factor=32.0, truncate=False, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=4096)),
    'llama yarn, factor implied': dict(model_type='llama', max_position_embeddings=2048, rope_theta=10000.0,
                                       rope_scaling=dict(rope_type='yarn', factor=None, original_max_position_embeddings=512)),
    'llama yarn, short': dict(model_type='llama', max_position_embeddings=64, rope_theta=10000.0, head_dim=16,
                              rope_scaling=dict(rope_type='yarn', factor=2.0, original_max_position_embeddings=16)),
}

out = []
for name, fields in CASES.items():
    written = {**BASE, **fields}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, 'config.json'), 'w') as f:
            json.dump(written, f)
        config = AutoConfig.from_pretrained(folder)
        config.save_pretrained(folder)
        again = json.load(open(os.path.join(folder, 'config.json')))
    rope = EMBEDDING[config.model_type](config)
    out.append(dict(name=name, written4=written, written5=again, inv_freq=[float(x) for x in rope.inv_freq.double()], factor=float(rope.attention_scaling)))
with open('tests/model/golden/rope.json', 'w') as f:
    f.write('{"cases": [\n' + ',\n'.join(json.dumps(c) for c in out) + '\n]}\n')
