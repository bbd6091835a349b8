#!/usr/bin/env python3
"""hydrahead beside llama.cpp on this CPU, in turn in one run, as a table of ratios: `make bench-cpu`.

    bench/cpu_table.py --dense bf16=M.bf16.gguf --dense q8_0=M.q8_0.gguf --peer f16=M.f16.gguf --hybrid 7:1=HYBRID \\
                       --contexts 512,2048 --rounds 3 --out bench/results/cpu/some-machine.jsonl

Both get the same file (--dense); --peer names files that llama.cpp alone reads, since any of its types may be its best. Every
round runs each of them once; the best of the rounds counts for both sides, so that other programs' moments count for neither. Prefill
is compared with llama.cpp's best type at that length, a dense model's decode with llama.cpp's of the same type, a hybrid's with
its best. Contexts of more than --once tokens are taken once, and llama.cpp prefills them in the first type named alone (name its
fastest first): the others decode behind the same state. --out gets every line measured."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PREFILL, DECODE = "prefill_tok_s", "decode_tok_s"


def lines_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Table:
    def __init__(self, options):
        self.o, self.best = options, {}
        self.log = open(options.out, "a") if options.out else None

    def note(self, who, kind, line):
        line = {"who": who, "kind": kind, **{k: line[k] for k in ("context", PREFILL, DECODE)}}
        if self.log:
            print(json.dumps(line), file=self.log, flush=True)
        print(f"  {who:10} {kind:6} {line['context']:6} tokens: prefill {line[PREFILL] or 0:7.1f}  decode {line[DECODE]:6.1f}",
              file=sys.stderr)
        for what in (PREFILL, DECODE):
            key = who, kind, line["context"], what
            if line[what]:
                self.best[key] = max(self.best.get(key, 0), line[what])

    def ours(self, kind, path, context):
        words = [self.o.hydrahead, "bench", path, "--contexts", str(context), "--decode", str(self.o.decode), "--kv",
                 self.o.kv, "--json", "--threads", str(self.o.threads), "--quiet"]
        for line in lines_of(words):
            self.note("hydrahead", kind, line)

    def theirs(self, kind, path, context, state):
        words = [sys.executable, os.path.join(HERE, "peers", "llama_cpu.py"), f"{kind}={path}", "--contexts", str(context),
                 "--decode", str(self.o.decode), "--threads", str(self.o.threads)] + (["--state", state] if state else [])
        for line in lines_of(words):
            self.note("llama.cpp", kind, line)

    def peer(self, context, what, kind=None):
        """Their rate, of one type or of the best, and the type."""
        rates = [(v, k[1]) for k, v in self.best.items() if k[0] == "llama.cpp" and k[2:] == (context, what)
                 and kind in (None, k[1])]
        return max(rates, default=(None, None))

    def print(self):
        print("| here | tokens | prefill | llama.cpp's best | ratio | decode | llama.cpp's | ratio |\n|---|---|---|---|---|---|---|---|")
        for who, kind, context, what in sorted(self.best, key=lambda k: (k[1], k[2])):
            if who != "hydrahead" or what != PREFILL:
                continue
            p, d = self.best[who, kind, context, PREFILL], self.best[who, kind, context, DECODE]
            tp, pk = self.peer(context, PREFILL)
            td, dk = self.peer(context, DECODE, kind if any(k[:2] == ("llama.cpp", kind) for k in self.best) else None)
            print(f"| {kind} | {context} | {p:.0f} | " + (f"{tp:.0f} ({pk}) | {p / tp:.2f} | " if tp else "- | - | ") +
                  f"{d:.1f} | " + (f"{td:.1f} ({dk}) | {d / td:.2f} |" if td else "- | - |"))


def pairs(words):
    return [w.split("=", 1) for w in words]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--dense", action="append", default=[], metavar="KIND=FILE")
    a.add_argument("--peer", action="append", default=[], metavar="KIND=FILE")
    a.add_argument("--hybrid", action="append", default=[], metavar="NAME=MODEL")
    a.add_argument("--contexts", default="512,2048")
    a.add_argument("--decode", type=int, default=32)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--once", type=int, default=4096)
    a.add_argument("--kv", default="bf16", help="of ours; llama.cpp's is float16")
    a.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a.add_argument("--hydrahead", default="build/hydrahead")
    a.add_argument("--out")
    t = Table(a.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        for context in (int(x) for x in t.o.contexts.split(",")):
            once = context > t.o.once
            for _ in range(1 if once else t.o.rounds):
                state = os.path.join(folder, str(context)) if once else None
                for kind, path in pairs(t.o.peer):
                    t.theirs(kind, path, context, state)
                for kind, path in pairs(t.o.dense):
                    t.theirs(kind, path, context, state)
                    t.ours(kind, path, context)
                for name, path in pairs(t.o.hybrid):
                    t.ours(name, path, context)
    t.print()


main()
