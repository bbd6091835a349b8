#!/usr/bin/env python3
"""make_results.py SUMMARY.json [TITLE | --one]: tables in Markdown of what `hydrahead eval --summary` gathered, on standard output.

docs/RESULTS.md is made so from bench/results/smollm2/summary.json; nothing in its tables is written by hand. --one makes one table of
needle tasks and perplexity instead, as for bench/results/smollm2/ablations/summary.json."""
import json
import sys

summary = json.load(open(sys.argv[1]))["models"]
names = list(summary)


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def cell(x, digits=3):
    return "" if x is None else f"{x:.{digits}f}"


one = "--one" in sys.argv
if len(sys.argv) > 2 and not one:
    print(f"## {sys.argv[2]}\n")

lengths = sorted({int(n) for m in summary.values() for t in m.get("ruler", {}).values() for n in t})
tasks = []
for m in summary.values():
    tasks += [t for t in m.get("ruler", {}) if t not in tasks]
if one:
    def cells(model, task):
        found = model.get("ruler", {}).get(task, {})
        return " / ".join(f"{found[n]:.2f}" for n in sorted(found, key=int))
    table(["model", "tokens trained"] + tasks + ["perplexity"],
          [[name, f"{m.get('tokens', 0) / 1e6:.1f} M"] + [cells(m, t) for t in tasks] + [cell(m.get("perplexity"), 1)]
           for name, m in summary.items()])
    sys.exit()
if lengths:
    print("### RULER's needle tasks: share of values found, mean over all tasks\n")
    rows = []
    for name in names:
        row = [name, f"{summary[name].get('tokens', 0) / 1e6:.1f} M"]
        for n in lengths:
            found = [t[str(n)] for t in summary[name].get("ruler", {}).values() if str(n) in t]
            row.append(cell(sum(found) / len(found)) if len(found) == len(tasks) else "")
        rows.append(row)
    table(["model", "tokens trained"] + [str(n) for n in lengths], rows)
    for task in tasks:
        print(f"### {task}\n")
        table(["model"] + [str(n) for n in lengths],
              [[name] + [cell(summary[name].get("ruler", {}).get(task, {}).get(str(n)), 2) for n in lengths] for name in names])

files = []
for m in summary.values():
    files += [f for f in m.get("choice", {}) if f not in files]
if files:
    print("### Choice items (acc_norm where there is one, else acc) and wikitext2 perplexity\n")
    rows = []
    for name in names:
        scores = [summary[name].get("choice", {}).get(f) for f in files]
        known = [s for s in scores if s is not None]
        rows.append([name] + [cell(s) for s in scores] + [cell(sum(known) / len(known)) if len(known) == len(files) else "",
                                                          cell(summary[name].get("perplexity"), 2)])
    table(["model"] + files + ["mean", "perplexity"], rows)
