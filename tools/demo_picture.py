#!/usr/bin/env python3
"""Draws docs/demo.svg from a demo's summary.json: needles found by length, for the teacher and both hybrids.

    python3 tools/demo_picture.py demo-out/summary.json > docs/demo.svg
"""
import json, sys

d = json.load(open(sys.argv[1]))
W, H, left, top, plot_w, plot_h = 780, 300, 60, 56, 440, 180
colour = {'teacher': '#6b7280', 'causal': '#1d5fc4', 'random': '#c2570c'}
label = {'teacher': f"teacher: {d['cache_bytes_per_token']['teacher']:.0f} cache bytes a token",
         'causal': f"causal hybrid: {d['cache_bytes_per_token']['causal']:.0f}", 'random': f"random hybrid: {d['cache_bytes_per_token']['random']:.0f}"}
n = len(d['lengths'])
group = plot_w / n
bar = group / 4.2
out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="system-ui, sans-serif" font-size="13" role="img" '
       f'aria-label="needles found by prompt length">',
       f'<rect width="{W}" height="{H}" fill="#ffffff"/>',
       f'<text x="{left}" y="28" font-size="15" font-weight="600" fill="#111827">Needles found, {d["samples"]} at each length, after '
       f'{d["trained_tokens"] / 1e6:.2f} M tokens of transfer in {d["seconds"]:.0f} s</text>']
for v in (0, .5, 1):
    y = top + plot_h * (1 - v)
    out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + plot_w}" y2="{y:.1f}" stroke="#e5e7eb"/>'
               f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#374151">{v:g}</text>')
for i, length in enumerate(d['lengths']):
    for k, name in enumerate(('teacher', 'causal', 'random')):
        a = d['accuracy'][name][i]
        x = left + group * i + group * .15 + bar * k * 1.08
        h = max(plot_h * a, 1.5)
        out.append(f'<rect x="{x:.1f}" y="{top + plot_h - h:.1f}" width="{bar:.1f}" height="{h:.1f}" fill="{colour[name]}"/>'
                   f'<text x="{x + bar / 2:.1f}" y="{top + plot_h - h - 5:.1f}" text-anchor="middle" font-size="11" fill="#374151">{a:.2f}</text>')
    times = length / d['lengths'][0]
    out.append(f'<text x="{left + group * (i + .5):.1f}" y="{top + plot_h + 20}" text-anchor="middle" fill="#374151">{length} tokens'
               f'{"" if times == 1 else f" ({times:g}x)"}</text>')
for k, name in enumerate(('teacher', 'causal', 'random')):
    y = top + 20 + 24 * k
    out.append(f'<rect x="{left + plot_w + 16}" y="{y - 10}" width="12" height="12" fill="{colour[name]}"/>'
               f'<text x="{left + plot_w + 34}" y="{y}" fill="#374151" font-size="12">{label[name]}</text>')
out.append(f'<text x="{left}" y="{H - 14}" font-size="12" fill="#6b7280">hydrahead demo: nano, trained on 256 tokens; each hybrid keeps full attention in '
           f'{len(d["kept_heads"])} of 32 heads</text></svg>')
print('\n'.join(out))
