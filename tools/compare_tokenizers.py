#!/usr/bin/env python3
"""Compares `hydrahead tokenize` with Hugging Face `tokenizers`, id by id: random characters among all that Unicode 14 assigns (Python 3.11's
tables), hard mixtures, and text files. Prints one line a comparison; exit 1 when one differs.

    compare_tokenizers.py models/nano/tokenizer.json models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --texts FILE ...
"""
import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

import tokenizer_oracles as oracles


def ours(program, model, text, special):
    with tempfile.NamedTemporaryFile() as f:
        f.write(text.encode())
        f.flush()
        command = [program, "tokenize", model, "--json", "--file", f.name] + (["--special"] if special else [])
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["ids"]


def back(program, model, ids):
    run = subprocess.run([program, "tokenize", model, "--special", "--decode", "-"], input=",".join(map(str, ids)).encode(), check=True, capture_output=True)
    return run.stdout


def show_difference(t, text, mine, theirs):
    i = next((i for i, (x, y) in enumerate(zip(mine, theirs)) if x != y), min(len(mine), len(theirs)))
    around = slice(max(0, i - 3), i + 5)
    print(f"    ids {i}...: ours {mine[around]} {[t.id_to_token(x) for x in mine[around]]}")
    print(f"              theirs {theirs[around]} {[t.id_to_token(x) for x in theirs[around]]}")


def read_text(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
        return f.read().decode()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", help="tokenizer.json or a SmolLM2 .gguf file")
    p.add_argument("--program", default="build/hydrahead")
    p.add_argument("--characters", type=int, default=1000000)
    p.add_argument("--texts", nargs="*", default=[])
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    failed = False
    for model in a.models:
        t = oracles.from_gguf(model)[0] if model.endswith(".gguf") else Tokenizer.from_file(model)
        rng = random.Random(a.seed)
        n = max(1, a.characters // 10)
        uniform = ["".join(rng.choice(oracles.ASSIGNED) for _ in range(n)) for _ in range(10)]
        hard = [oracles.hard_text(rng, n) for _ in range(10)]
        texts = [("random characters", uniform), ("hard mixtures", hard)] + [(path, [read_text(path)]) for path in a.texts]
        for name, parts in texts:
            for special in (False, True):
                t.encode_special_tokens = not special
                differ = 0
                for text in parts:
                    mine, theirs = ours(a.program, model, text, special), t.encode(text, add_special_tokens=False).ids
                    if mine != theirs:
                        differ += 1
                        show_difference(t, text, mine, theirs)
                    elif t.normalizer is None and not model.endswith(".gguf") and back(a.program, model, mine) != text.encode():
                        differ += 1
                        print("    decoding does not give the text back")
                failed |= differ > 0
                print(f"{os.path.basename(os.path.dirname(model))}: {name}{' --special' if special else ''}: {sum(map(len, parts))} characters, {'equal' if not differ else f'{differ} of {len(parts)} parts differ'}")
                sys.stdout.flush()
    sys.exit(failed)


main()
