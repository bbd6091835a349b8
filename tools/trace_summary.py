#!/usr/bin/env python3
"""Sums a trace of operations (HYDRAHEAD_TRACE=FILE) by operation: how often, how long, which share. On a GPU every traced operation is
waited for, so that its time holds a wait as well (some 10 to 20 us): small operations look longer than they are.

    python3 tools/trace_summary.py FILE [--shapes] [--last N]

--shapes: by operation and arguments. --last N: only the last N-th part of the events, e.g. --last 2 for the second of two steps.
"""
import argparse, collections, json

a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument('file')
a.add_argument('--shapes', action='store_true')
a.add_argument('--last', type=int, default=1)
a = a.parse_args()
with open(a.file) as f:
    text = f.read().rstrip().rstrip(',')
events = json.loads(text if text.endswith(']') else text + ']')
events = events[len(events) - len(events) // a.last:]
count, total = collections.Counter(), collections.Counter()
for e in events:
    args = {k: v for k, v in e['args'].items() if k != 'layer'}
    key = e['name'] + (' ' + ' '.join(f'{k}={v}' for k, v in args.items()) if a.shapes else '')
    count[key] += 1
    total[key] += e['dur'] / 1e3
everything = sum(total.values())
print(f"{len(events)} operations, {everything:.2f} ms in them, {(events[-1]['ts'] + events[-1]['dur'] - events[0]['ts']) / 1e3:.2f} ms from first to last")
for key, ms in total.most_common(60):
    print(f'{ms:10.3f} ms {100 * ms / everything:5.1f} % {count[key]:6d} x {1e3 * ms / count[key]:9.1f} us  {key}')
