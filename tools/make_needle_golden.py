#!/usr/bin/env python3
"""Writes tests/data/golden/ruler.jsonl.gz: prompts of NVIDIA/RULER's own generator, run as it is, with the tokenizer of models/nano.

    make_needle_golden.py RULER_CHECKOUT      # a clone of github.com/NVIDIA/RULER; needs Python packages numpy, tokenizers

Three things are put in the place of what the generator imports: the tokenizer, nltk's sentence splitter (the rule of src/data/haystack.h),
and the essays (the shipped excerpt models/nano/text_valid.txt.gz). Word lists are wonderwords' own (src/data/words).
"""
import gzip, json, os, shutil, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STUBS = {
    'tokenizer.py': f'''
from tokenizers import Tokenizer
class T:
    def __init__(self): self.t = Tokenizer.from_file({ROOT + '/models/nano/tokenizer.json'!r})
    def text_to_tokens(self, text): return self.t.encode(text, add_special_tokens=False).ids
def select_tokenizer(kind, path): return T()
''',
    'manifest_utils.py': '''
import json
def write_manifest(path, rows): open(path, 'w').write(''.join(json.dumps(r) + chr(10) for r in rows))
''',
    'wonderwords.py': f'''
class random_word:
    def _get_words_from_text_file(name):
        path = {{'nounlist.txt': 'nouns.txt', 'adjectivelist.txt': 'adjectives.txt'}}[name]
        return [w.rstrip() for w in open({ROOT + '/src/data/words/'!r} + path)]
''',
    'tqdm.py': 'def tqdm(x): return x\n',
    'nltk/__init__.py': '',
    'nltk/tokenize.py': r'''
ABBREVIATIONS = "Mr. Mrs. Ms. Dr. St. Capt. Col. Prof. Rev. Gen. Lieut. Sir. No. vol. i.e. e.g.".split()
def ends(word):
    bare, stem = word.lstrip("\"'(["), word.rstrip("\"')]\u201d\u2019")
    if len(bare) == 2 and "A" <= bare[0] <= "Z" and bare[1] == "." or bare in ABBREVIATIONS: return False
    return stem[-1:] in (".", "!", "?") and stem != ""
def sent_tokenize(text):
    out, part = [], []
    for w in text.split(" "):
        part.append(w)
        if ends(w): out.append(" ".join(part)); part = []
    return out + ([" ".join(part)] if part else [])
''',
}
SETTINGS = {  # RULER's scripts/synthetic.yaml
    'niah_single_1': ('noise', 'words', 'numbers', 1, 1, 1), 'niah_single_2': ('essay', 'words', 'numbers', 1, 1, 1),
    'niah_single_3': ('essay', 'words', 'uuids', 1, 1, 1), 'niah_multikey_1': ('essay', 'words', 'numbers', 4, 1, 1),
    'niah_multikey_2': ('needle', 'words', 'numbers', 1, 1, 1), 'niah_multikey_3': ('needle', 'uuids', 'uuids', 1, 1, 1),
    'niah_multivalue': ('essay', 'words', 'numbers', 1, 4, 1), 'niah_multiquery': ('essay', 'words', 'numbers', 1, 1, 4)}


def main(ruler):
    with tempfile.TemporaryDirectory() as d:
        os.makedirs(d + '/synthetic/json'), os.makedirs(d + '/nltk')
        for name in ('niah.py', 'constants.py'): shutil.copy(f'{ruler}/scripts/data/synthetic/{name}', d + '/synthetic')
        for name, text in STUBS.items(): open(f'{d}/{name}', 'w').write(text)
        text = gzip.open(ROOT + '/models/nano/text_valid.txt.gz', 'rt').read().replace('<|endoftext|>', ' ').strip()
        json.dump({'text': text}, open(d + '/synthetic/json/PaulGrahamEssays.json', 'w'))
        sys.path.insert(0, d + '/synthetic')
        from constants import TASKS
        rows = []
        for task, (hay, key, value, nk, nv, nq) in SETTINGS.items():
            for length, seed, samples in ((512, 42, 3), (1024, 7, 2), (4096, 42, 4)):
                if hay == 'essay' and length < 4096: continue  # the generator never ends there
                if length == 512 and key == 'uuids': continue  # neither here
                subprocess.run([sys.executable, 'synthetic/niah.py', '--save_dir', d, '--save_name', 'x', '--tokenizer_path', 'x', '--max_seq_length', str(length),
                                '--tokens_to_generate', str(TASKS['niah']['tokens_to_generate']), '--num_samples', str(samples), '--random_seed', str(seed),
                                '--template', TASKS['niah']['template'] + TASKS['niah']['answer_prefix'], '--type_haystack', hay, '--type_needle_k', key,
                                '--type_needle_v', value, '--num_needle_k', str(nk), '--num_needle_v', str(nv), '--num_needle_q', str(nq)],
                               cwd=d, check=True, env=dict(os.environ, PYTHONPATH=d), stderr=subprocess.DEVNULL, timeout=300)
                for i, line in enumerate(open(d + '/x/validation.jsonl')):
                    r = json.loads(line)
                    rows.append({'task': task, 'length': length, 'seed': seed, 'index': i, 'prompt': r['input'] + r['answer_prefix'], 'answers': r['outputs'],
                                 'tokens': r['length'] - TASKS['niah']['tokens_to_generate']})
                print(task, length, seed, [r['tokens'] for r in rows[-samples:]], flush=True)
        out = ROOT + '/tests/data/golden/ruler.jsonl.gz'
        os.makedirs(os.path.dirname(out), exist_ok=True)
        with open(out, 'wb') as raw, gzip.GzipFile(filename='', mode='wb', fileobj=raw, mtime=0) as f:
            for r in rows: f.write((json.dumps(r) + '\n').encode())


if __name__ == '__main__':
    if len(sys.argv) != 2: sys.exit(__doc__)
    main(sys.argv[1])
