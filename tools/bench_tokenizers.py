#!/usr/bin/env python3
"""Speed of hydrahead's encode beside Hugging Face `tokenizers`, both on one thread and in its processor time, on the same documents.

    make build/bench/bench_tokenizer
    bench_tokenizers.py models/nano/tokenizer.json TEXT_FILE [DOCUMENT_BYTES]
"""
import os
import re
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402

import tokenizer_oracles as oracles  # noqa: E402

model, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 10000
t = oracles.from_gguf(model)[0] if model.endswith(".gguf") else Tokenizer.from_file(model)
t.encode_special_tokens = True
data = open(path, "rb").read()
documents, at = [], 0
while at < len(data):
    end = data.find(b" ", at + size)
    end = len(data) if end < 0 else end
    documents.append(data[at:end].decode())
    at = end
best = 1e30
for _ in range(3):
    start = time.process_time()
    n = sum(len(t.encode(d, add_special_tokens=False).ids) for d in documents)
    best = min(best, time.process_time() - start)
theirs = len(data) / best / 1e6
line = subprocess.run(["build/bench/bench_tokenizer", model, path, str(size)], check=True, capture_output=True, text=True).stdout
ours, n_ours = float(re.search(r"([0-9.]+) MB/s", line)[1]), int(re.search(r"(\d+) ids", line)[1])
print(f"{model}, documents of {size} bytes: hydrahead {ours:.1f} MB/s, tokenizers {theirs:.1f} MB/s, ratio {ours / theirs:.1f}; {n_ours} and {n} ids")
