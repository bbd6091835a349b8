#!/usr/bin/env python3
"""check_long.py HYDRAHEAD MODEL TOKENS [DEPTH]: one needle of RULER's wording in TOKENS tokens of noise, asked by `run`, by `serve` and by `eval ruler`: each must find it
(eval: a sample of its own), and the peak of resident memory of the first two is put beside what `plan` says. The prompt stops at TOKENS less 64. THREADS, SERVE=0,
EVAL=0 leave parts out. Needs GNU time (/usr/bin/time); only Python's standard library."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

program, model, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
depth = float(sys.argv[4]) if len(sys.argv) > 4 else 0.4
threads = os.environ.get("THREADS", "2")
KEY, VALUE = "quiet-harbor", "7382914"
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
HEAD = "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the number afterwards.\n"
TAIL = f"\nWhat is the special magic number for {KEY} mentioned in the provided text? The special magic number for {KEY} mentioned in the provided text is"
bad = 0


def prompt(lines):
    text = [NOISE] * lines
    text.insert(int(lines * depth), f"One of the special magic numbers for {KEY} is: {VALUE}.\n")
    return HEAD + "".join(text) + TAIL


def count(text):
    with open(folder + "/prompt", "w") as f:
        f.write(text)
    return len(json.loads(subprocess.check_output([program, "tokenize", model, "--file", folder + "/prompt", "--json"]))["ids"])


def say(what, answer, peak, seconds):
    global bad
    found = VALUE in answer
    ratio = plan / peak
    bad += not found or not 0.95 <= ratio <= 1.05
    print(f"{what}: plan {plan / 2**20:.1f} MiB, peak {peak / 2**20:.1f} MiB, ratio {ratio:.3f}; needle {'found' if found else 'NOT found'} ({answer.strip()[:40]!r}); {seconds:.0f} s", flush=True)


with tempfile.TemporaryDirectory() as folder:
    few, many = count(prompt(10)), count(prompt(110))
    lines = int((tokens - 64 - few) / ((many - few) / 100)) + 10
    while (n := count(prompt(lines))) > tokens - 64:
        lines -= 1
    plan = json.loads(subprocess.check_output([program, "plan", model, "--ctx", str(tokens), "--threads", threads, "--json"]))["total"]
    print(f"{model}: {n} tokens", flush=True)
    begin = time.time()
    out = subprocess.run(["/usr/bin/time", "-f", "%M", "-o", folder + "/peak", program, "run", model, "--file", folder + "/prompt", "--max-new", "16", "--context", str(tokens), "--threads", threads, "-q"],
                         check=True, capture_output=True, text=True).stdout
    say("run", out[-200:], int(open(folder + "/peak").read()) * 1024, time.time() - begin)
    if os.environ.get("SERVE") != "0":
        begin = time.time()
        server = subprocess.Popen([program, "serve", model, "--ctx", str(tokens), "--slots", "1", "--cache-bytes", "0", "--threads", threads, "--port", "0", "-q"], stdout=subprocess.PIPE, text=True)
        body = {"prompt": open(folder + "/prompt").read(), "max_tokens": 16, "temperature": 0}
        request = urllib.request.Request(f"http://127.0.0.1:{int(server.stdout.readline())}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=36000))["choices"][0]["text"]
        peak = int(re.search(r"VmHWM:\s*(\d+)", open(f"/proc/{server.pid}/status").read())[1]) * 1024
        say("serve", answer, peak, time.time() - begin)
        server.terminate()
        assert server.wait(60) == 0
    if os.environ.get("EVAL") != "0":
        subprocess.run([program, "eval", "ruler", model, "--tasks", "niah_single_1", "--lengths", str(tokens), "--samples", "1", "--threads", threads, "-q"], check=True)
sys.exit(1 if bad else 0)
