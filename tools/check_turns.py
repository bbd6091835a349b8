#!/usr/bin/env python3
"""check_turns.py HYDRAHEAD MODEL [TOKENS]: a dialogue whose first turn has TOKENS (16384) tokens, against `hydrahead serve MODEL --cache-dir`: a second turn, a restart
of the server, a third turn. Prints for each turn the tokens of the prompt, how many were not read again, and the time to the first token; exits with 1 when a turn after
the first read more than what is new and 64 tokens. Chats where the model has a template, completions else. Only Python's standard library."""
import gzip
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

program, model = sys.argv[1:3]
wanted = int(sys.argv[3]) if len(sys.argv) > 3 else 16384
folder = tempfile.TemporaryDirectory()


class Server:
    def __enter__(self):
        begin = time.time()
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--ctx", str(wanted + 2048), "--slots", "1", "--cache-dir", folder.name, "-q"],
                                        stdout=subprocess.PIPE, text=True)
        self.base = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        print(f"server up in {time.time() - begin:.1f} s", flush=True)
        return self

    def __exit__(self, *_):
        begin = time.time()
        self.process.terminate()
        assert self.process.wait(600) == 0
        print(f"server ended, snapshots written, in {time.time() - begin:.1f} s", flush=True)

    def post(self, path, body):
        return urllib.request.urlopen(urllib.request.Request(self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=7200)

    def count(self, text):
        return len(json.load(self.post("/tokenize", {"content": text}))["tokens"])


def ask(server, turns):
    """The answer to turns (user, assistant, user, ...), tokens of the prompt, tokens known, seconds to the first token."""
    common = {"max_tokens": 24, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    begin, first, text, usage = time.time(), None, "", None
    try:
        reply = server.post("/v1/chat/completions", common | {"messages": [{"role": "assistant" if i % 2 else "user", "content": t} for i, t in enumerate(turns)]})
        lines = list_events(reply)
        head = next(lines)
        if "error" in head:
            raise ValueError(head)
        events = [head]
    except (urllib.error.HTTPError, ValueError):
        lines, events = list_events(server.post("/v1/completions", common | {"prompt": "\n".join(turns)})), []
    for event in (e for part in (events, lines) for e in part):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
            text += piece
            first = first or (piece and time.time() - begin)
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], first or time.time() - begin


def list_events(reply):
    for line in reply:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


book = gzip.open("models/nano/text_valid.txt.gz", "rt").read()
bad = 0
with Server() as s:
    size = wanted * 3
    while (n := s.count(book[:size])) > wanted or n < wanted * 0.99:
        size = int(size * wanted / n * 0.995)
    turns, known = [book[:size]], 0


def turn(server, what):
    global bad, known
    text, n, cached, seconds = ask(server, turns)
    new = n - known
    print(f"{what}: {n} tokens, {cached} not read again ({n - cached} read, {new} of them new), first token after {seconds:.2f} s", flush=True)
    bad += known > 0 and n - cached > new + 64
    known = n
    turns.extend([text, "And what happened then? Tell it in a few words."])


with Server() as s:
    turn(s, "first turn")
    turn(s, "second turn")
with Server() as s:
    turn(s, "third turn, after a restart")
sys.exit(1 if bad else 0)
