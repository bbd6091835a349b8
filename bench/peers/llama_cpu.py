#!/usr/bin/env python3
"""llama.cpp on this machine's CPU: tokens a second of prefill and decode, in the JSON lines of `hydrahead bench --json`.

    CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python        # compiles llama.cpp for this processor
    bench/peers/llama_cpu.py bf16=MODEL.bf16.gguf q8_0=MODEL.q8_0.gguf --contexts 512,2048 > peer.jsonl
    build/hydrahead bench MODEL.q8_0.gguf --contexts 512,2048 --kv bf16 --json --peer peer.jsonl

The cache is float16 and attention is its flash attention. --make writes copies in other types beside a file, as llama.cpp's
quantize does: `--make MODEL.gguf`. With --state FILE a prompt's state is saved there, and where it is already there it is taken
instead of prefilling (prefill is null then): types share it, since the cache's type is the same."""
import argparse
import ctypes
import json
import os
import sys
import time

import llama_cpp


def make_copies(path):
    for name, ftype in (("bf16", 32), ("f16", 1), ("q8_0", 7), ("q4_0", 2)):
        out = f"{os.path.splitext(path)[0]}.{name}.gguf"
        p = llama_cpp.llama_model_quantize_default_params()
        p.ftype, p.allow_requantize, p.nthread = ftype, True, os.cpu_count()
        if not os.path.exists(out) and llama_cpp.llama_model_quantize(path.encode(), out.encode(), ctypes.byref(p)):
            sys.exit(f"cannot write {out}")
        print(out)


def restore(m, path, ids):
    tokens, n = (llama_cpp.llama_token * len(ids))(), ctypes.c_size_t()
    if not llama_cpp.llama_state_load_file(m.ctx, path.encode(), tokens, len(ids), ctypes.byref(n)) or n.value != len(ids):
        sys.exit(f"{path} is no state of {len(ids)} tokens")
    m.input_ids[:len(ids)], m.n_tokens = ids, len(ids)


def measure(m, context, decode, state):
    ids = [(i * 7919 + 100) % m.n_vocab() for i in range(context)]
    m.reset()
    prefill = None
    if state and os.path.exists(state):
        restore(m, state, ids)
    else:
        start = time.perf_counter()
        m.eval(ids)
        prefill = context / (time.perf_counter() - start)
        if state:
            llama_cpp.llama_state_save_file(m.ctx, state.encode(), (llama_cpp.llama_token * context)(*ids), context)
    start = time.perf_counter()
    for i in range(decode):
        m.eval([500 + i])
    return prefill, decode / (time.perf_counter() - start)


def extrapolate(m, context, length):
    """Prefill at a length that would take too long: a chunk's time is a line in its position, which the chunks up to `context` give."""
    import numpy
    m.reset()
    at, chunk = [], []
    for lo in range(0, context, 512):
        start = time.perf_counter()
        m.eval([(i * 7919 + 100) % m.n_vocab() for i in range(lo, lo + 512)])
        at.append(lo + 256)
        chunk.append(time.perf_counter() - start)
    slope, first = numpy.polyfit(at, chunk, 1)
    return 512 / (first + slope * length / 2)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("models", nargs="*", metavar="KIND=FILE")
    a.add_argument("--contexts", default="512,2048,8128")
    a.add_argument("--decode", type=int, default=32)
    a.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a.add_argument("--state")
    a.add_argument("--extrapolate", type=int, metavar="N", help="prefill at N tokens, from what the longest of --contexts shows")
    a.add_argument("--make", metavar="MODEL.gguf")
    o = a.parse_args()
    if o.make:
        make_copies(o.make)
    contexts = [int(x) for x in o.contexts.split(",")]
    for model in o.models:
        kind, path = model.split("=", 1)
        m = llama_cpp.Llama(path, n_ctx=max(contexts) + o.decode + 64, n_threads=o.threads, n_threads_batch=o.threads,
                            n_batch=512, flash_attn=True, verbose=False)
        m.eval(list(range(100, 164)))  # weights are read once before the clock runs
        if o.extrapolate:
            prefill = extrapolate(m, max(contexts), o.extrapolate)
            print(json.dumps({"peer": "llama.cpp", "kind": kind, "context": o.extrapolate, "extrapolated_from": max(contexts),
                              "prefill_tok_s": round(prefill, 1), "decode_tok_s": None}), flush=True)
            continue
        for context in contexts:
            prefill, decode = measure(m, context, o.decode, o.state)
            print(json.dumps({"peer": "llama.cpp", "kind": kind, "context": context,
                              "prefill_tok_s": prefill and round(prefill, 1), "decode_tok_s": round(decode, 1)}), flush=True)


main()
