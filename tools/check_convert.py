"""Checks `hydrahead convert` against the reference in PyTorch: the hybrid it writes reads there, has the weights that migration
promises, and gives the same logits.

    python3 tools/check_convert.py REFERENCE_DIR TEACHER_DIR HYBRID_DIR [HYDRAHEAD]

REFERENCE_DIR holds hydrahead_ref.py; HYDRAHEAD is the program (build/hydrahead). The hybrid's own draws (w_a, w_b, A, dt) are taken as they
are and their distributions checked; everything else must equal what the reference's migrate() makes of the teacher.
"""
import os, subprocess, sys, tempfile
import numpy as np
import torch


def main(reference, teacher_dir, hybrid_dir, program='build/hydrahead'):
    sys.path.insert(0, reference)
    from hydrahead_ref import HydraHead, migrate
    teacher, hybrid = (HydraHead.from_dir(d, torch.float64) for d in (teacher_dir, hybrid_dir))
    hy = hybrid.hy
    fields = {k: v for k, v in hy.items() if k not in ('full_attention_heads', 'version')}
    wanted = migrate(teacher, hy['full_attention_heads'], **fields)
    assert wanted.w.keys() == hybrid.w.keys(), wanted.w.keys() ^ hybrid.w.keys()
    drawn = ('a_proj.weight', 'b_proj.weight', 'A_log', 'dt_bias', 'head_scale', 'gate_proj.bias')
    for name, w in wanted.w.items():
        got = hybrid.w[name]
        assert got.shape == w.shape, (name, got.shape, w.shape)
        if not name.endswith(drawn):
            assert torch.equal(got, w), f'{name} differs from the migrated weights'
    of = lambda tail: torch.cat([w.flatten() for n, w in hybrid.w.items() if n.endswith(tail)])
    ab, A, dt = of(('a_proj.weight', 'b_proj.weight')), of('A_log').exp(), torch.nn.functional.softplus(of('dt_bias'))
    assert abs(ab.std() / 0.02 - 1) < 0.05 and abs(ab.mean()) < 0.001, (ab.mean(), ab.std())
    assert A.min() >= 1 and A.max() <= 16 and dt.min() > 0.99e-3 and dt.max() < 0.101, (A.min(), A.max(), dt.min(), dt.max())
    print(f'weights equal the reference; A in [{A.min():.2f}, {A.max():.2f}], dt in [{dt.min():.4f}, {dt.max():.4f}]')

    ids = torch.randint(0, hybrid.c['vocab_size'], (1, 150), generator=torch.Generator().manual_seed(0))
    out = os.path.join(tempfile.mkdtemp(), 'logits.npy')
    subprocess.run([program, 'logits', hybrid_dir, '--dtype', 'f32', '--ids', ','.join(map(str, ids[0].tolist())), '--out', out], check=True)
    ours, theirs = np.load(out), hybrid(ids)[0].numpy()
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    print(f'logits: largest deviation {error:.1e} of the largest logit')
    assert error < 2e-5


if __name__ == '__main__':
    main(*sys.argv[1:])
