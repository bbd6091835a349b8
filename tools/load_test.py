#!/usr/bin/env python3
"""load_test.py HYDRAHEAD [SECONDS [CLIENTS [MODEL]]]: clients that ask, stream, hang up in the middle and come again; prints requests, failures, the gaps between bytes
and how the resident size grew. Exits with 1 when a request was lost or memory grew by more than 2 %. Only Python's standard library."""
import http.client
import json
import random
import subprocess
import sys
import threading
import time

seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60
clients = int(sys.argv[3]) if len(sys.argv) > 3 else 16
server = subprocess.Popen([sys.argv[1], "serve", sys.argv[4] if len(sys.argv) > 4 else "nano", "--port", "0", "--ctx", "512", "--slots", "8", "--cache-bytes", "3e7", "-q"],
                          stdout=subprocess.PIPE, text=True)
port = int(server.stdout.readline())
end = time.time() + seconds
answered, lost, gaps = [0], [], []


def resident():
    return int(open(f"/proc/{server.pid}/statm").read().split()[1]) * 4096


def ask(r):
    words = " ".join(r.choice("river stone green walk letter seven house light".split()) for _ in range(r.randint(5, 200)))
    stream = r.random() < 0.5
    body = {"prompt": words, "max_tokens": r.randint(1, 40), "temperature": r.choice([0, 1]), "stream": stream, "n": r.choice([1, 1, 2])}
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply, data, last = c.getresponse(), b"", time.time()
    if reply.status != 200:
        lost.append((reply.status, reply.read()[:100]))
    elif stream and r.random() < 0.2:
        reply.read(20)  # and hangs up
        answered[0] += 1
    else:
        while part := reply.read1(65536):
            gaps.append(time.time() - last)
            last, data = time.time(), data + part
        whole = data.rstrip().endswith(b"[DONE]") if stream else json.loads(data)["choices"]
        answered[0] += 1
        if not whole:
            lost.append(data[-80:])
    c.close()


def work(i):
    r = random.Random(i)
    while time.time() < end:
        try:
            ask(r)
        except Exception as e:
            lost.append(repr(e))


threads = [threading.Thread(target=work, args=(i,)) for i in range(clients)]
for t in threads:
    t.start()
sizes = []
for _ in range(400):
    time.sleep(seconds / 400)
    sizes.append(resident())
before, after = sum(sizes[80:160]) / 80, sum(sizes[320:]) / 80  # what is cached and under way changes all the time; the first minutes fill the cache of prompts
for t in threads:
    t.join()
gauges = http.client.HTTPConnection("127.0.0.1", port)
gauges.request("GET", "/metrics")
busy = [line for line in gauges.getresponse().read().decode().splitlines() if line.startswith(("hydrahead_slots_busy", "hydrahead_requests_under_way")) and not line.endswith(" 0")]
server.terminate()
status = server.wait(60)
gaps.sort()
print(f"{answered[0]} requests of {clients} clients in {seconds:.0f} s, {len(lost)} lost {lost[:3]}; "
      f"resident {before / 2**20:.1f} -> {after / 2**20:.1f} MiB ({(after - before) / before:+.2%}) in the second and the last fifth of the time, between {min(sizes[80:]) >> 20} and {max(sizes) >> 20}; "
      f"between bytes: median {gaps[len(gaps) // 2] * 1e3:.0f} ms, 99 % {gaps[int(len(gaps) * 0.99)] * 1e3:.0f} ms, longest {gaps[-1] * 1e3:.0f} ms; exit {status}")
print("resident size in MiB, every twentieth of the time:", *[size >> 20 for size in sizes[19::20]], *busy)
sys.exit(1 if lost or status or busy or after > before * 1.02 else 0)
