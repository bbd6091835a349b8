#!/usr/bin/env python3
"""Golden data of tests/text, from Hugging Face `tokenizers` and `transformers`: run from the repository's root.

nano.json, smollm2.json, qwen.json: texts and their ids. rules.json: nano's tokenizer.json with parts replaced, so that every rule
is met; chat.json: prompts of short chat templates. SmolLM2 and Qwen need models/smollm2/*.gguf and models/qwen/tokenizer.json
(make_qwen_tokenizer.py); without them their files stay as they are.
"""
import glob
import json
import os
import random

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import tokenizer_oracles as oracles

GOLDEN = "tests/text/golden"
TEXTS = [
    "", " ", "  ", "\n", " \n", "\n ", "a", " a", "  a", "a ", "a  ", "Hello, world!", "don't DON'T we'll I'M they'Ve o'clock '' 's",
    "x = 12345.678e-9;\n\tif (x > 1) { return; }\n\n\n    y", "1234567 ½ ² Ⅷ ٣٤٥ 12 345", "caf\u00e9 cafe\u0301 \u1e9b\u0323 \ufb01 \uff21 \u212b", "가각 \u1100\u1161\u11a8 漢字かな交じり文 สวัสดี हिन्दी",
    "👩\u200d👩\u200d👧 🇨🇭 🙂🙂", "\u180e\u2028\u2029\u00a0\u3000\u0085 x", "'\u017f '\u212a 'S\u017f", "<|endoftext|> a <|im_start|>user<|im_end|> <think>\n</think>",
    "tabs\t\tand  spaces   \r\n\r\nlines\r", "\x00\x01\x1a\x7f", "_under_score__ CamelCase ALLCAPS mIxEd", "...!!!???---===", "https://example.org/a?b=c&d=%20#e",
    "a" * 70, " " * 70 + "x", "\u0301\u0316\u0301" * 20, "The grass is green. The sky is blue.",
]


def ids(t, text, special=False):
    t.encode_special_tokens = not special
    return t.encode(text, add_special_tokens=False).ids


def write(name, value):
    with open(os.path.join(GOLDEN, name), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(x, separators=(",", ":"), ensure_ascii=False) for x in value) + "\n]\n")


def case(text, ids, special, whole=None):
    """special and all are left out where they equal ids."""
    return {"text": text, "ids": ids} | ({"special": special} if special != ids else {}) | ({"all": whole} if whole is not None and whole != ids else {})


def plain(t, n, seed):
    rng = random.Random(seed)
    texts = TEXTS + [oracles.hard_text(rng, 40) for _ in range(n)] + ["".join(rng.choice(oracles.ASSIGNED) for _ in range(12)) for _ in range(n // 4)]
    return [case(s, ids(t, s), ids(t, s, True)) for s in texts]


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES_ONLY = dict(BYTE_LEVEL, use_regex=False)


def sequence(*stages):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*stages, BYTES_ONLY]}}


def split(pattern, behavior, invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


VOCAB = json.load(open("models/nano/tokenizer.json"))["model"]["vocab"]


def token(id, content, **flags):
    """An added token; one that the vocabulary has keeps its id there, new ones follow it without a hole."""
    return {"id": VOCAB.get(content, id), "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False} | flags


END = token(0, "<|endoftext|>", special=True)
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}}
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def rules():
    """Parts of tokenizer.json that replace nano's."""
    yield {"pre_tokenizer": BYTE_LEVEL}
    yield {"pre_tokenizer": dict(BYTE_LEVEL, add_prefix_space=True)}
    yield {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, dict(BYTE_LEVEL, add_prefix_space=True)]}}
    yield {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, BYTE_LEVEL]}}
    for pattern in (oracles.QWEN2, oracles.QWEN35, oracles.LLAMA3, GPT4O):
        yield sequence(split(pattern, "Isolated"))
    yield sequence(split(oracles.QWEN2, "Removed", True))
    yield sequence(split(r"\p{N}{1,3}", "Isolated"), split("[一-龥\u3040-ゟ゠-ヿ]+", "Isolated"), split(DEEPSEEK, "Isolated"))
    for behavior in BEHAVIORS:
        for invert in (False, True):
            yield sequence(split(r"\s|[ae]{1,2}", behavior, invert))
    for behavior in BEHAVIORS:
        yield sequence(split("  ", behavior, kind="String"))
    yield sequence(split(r"^.|\S$", "MergedWithNext"), split(r"(?<=a)\w*?".replace(r"\w*?", "[b-z]+?(?=[ ,.])"), "Isolated"))
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield {"normalizer": {"type": form}}
    yield {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " +"}, "content": "  "},
                                                              {"type": "Replace", "pattern": {"String": "a"}, "content": "bb"}, {"type": "Prepend", "prepend": "_"}]}}
    yield {"added_tokens": [END, token(2048, "<|im_start|>", special=True), token(2049, "<think>"), token(2050, "<|"), token(2051, "am", single_word=True),
                            token(2052, "The", lstrip=True), token(2053, "is", rstrip=True, lstrip=True), token(2051, "ßa", special=True, rstrip=True)]}
    yield {"normalizer": {"type": "NFC"}, "added_tokens": [END, token(2048, "e\u0301", normalized=True), token(2049, "cafe", normalized=True, single_word=True),
                                                            token(2050, "a\u0301", normalized=False), token(2051, "\u212b", normalized=True), token(2052, "  ", normalized=True)]}
    yield {"post_processor": TEMPLATE}
    yield {"post_processor": {"type": "Sequence", "processors": [BYTE_LEVEL, TEMPLATE]}}
    for unknown in (False, True):
        yield {"model": {"ignore_merges": True, "drop": [" ", "e", "\u00e4", "\u0120"], "unk_token": "<|endoftext|>" if unknown else None, "fuse_unk": unknown}}


def apply_rules(base, patch):
    """The file with its parts replaced; of the model only single fields; `drop` removes tokens and the merges that need them."""
    whole = dict(base, **{k: v for k, v in patch.items() if k != "model"})
    if "model" in patch:
        fields = dict(patch["model"])
        drop = set(fields.pop("drop", []))
        model = dict(base["model"], **fields)
        model["vocab"] = {s: i for s, i in model["vocab"].items() if s not in drop}
        model["merges"] = [m for m in model["merges"] if not drop & {*m}]
        whole["model"] = model
    return whole


def make_rules():
    base = json.load(open("models/nano/tokenizer.json"))
    rng = random.Random(5)
    special = ["<|im_start|>The am name is  <think> <|im  is\n", "The  The\u3000The ßa  b <|endoftext|><|x", " is is  is ", "e\u0301 \u00e9 cafe\u0301 caf\u00e9 caf a\u0301 \u00c5 \u212b A\u030a"]
    for patch in rules():
        t = Tokenizer.from_str(json.dumps(apply_rules(base, patch)))
        texts = special + TEXTS[5:21] + [oracles.hard_text(rng, 30) for _ in range(6)]
        yield {"patch": patch, "cases": [case(s, ids(t, s), ids(t, s, True), with_all(t, s)) for s in texts]}


def with_all(t, s):
    t.encode_special_tokens = False
    return t.encode(s, add_special_tokens=True).ids


ML_LOOP = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
ML_END = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
LLAMA_LOOP = "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
LLAMA_END = "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
TEMPLATES = {
    "chatml": ML_LOOP + ML_END,
    "default system": "{% if messages[0]['role'] != 'system' %}{{ \"<|im_start|>system\\nI'm helpful.<|im_end|>\\n\" }}{% endif %}" + ML_LOOP + ML_END,
    "real line": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}{% endif %}" + ML_LOOP + ML_END,
    "qwen3": "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
             "{%- set ns = namespace(open=true, last_query_index=messages|length - 1) %}{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
             "{%- if ns.open and message.role == 'user' and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}"
             "{%- set ns.open = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}"
             "{%- for message in messages %}{%- set content = message.content %}{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
             "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}{%- elif message.role == 'assistant' %}{%- set thought = '' %}"
             "{%- if '</think>' in content %}{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
             "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
             "{%- if loop.index0 > ns.last_query_index and (loop.last or thought) %}"
             "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}"
             "{%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
             "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}",
    "thinking": ML_LOOP + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}",
    "llama3": "{{ bos_token }}" + LLAMA_LOOP + LLAMA_END,
    "llama3.1": "{{- bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
                "{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{{- 'Cutting Knowledge Date: December 2023\\n' }}{{- 'Today Date: ' + '26 Jul 2024' + '\\n\\n' }}{{- system }}{{- '<|eot_id|>' }}" + LLAMA_LOOP + LLAMA_END,
}
CHATS = [
    [("user", "Hello")],
    [("system", "Be short.\n"), ("user", " Hi \n"), ("assistant", "\nHello!"), ("user", "Bye  now")],
    [("user", "1+1?"), ("assistant", "<think>\n\neasy\n\n</think>\n\n2"), ("user", "sure?"), ("assistant", "<think>yes</think>Yes"), ("assistant", "Done")],
    [("user", "q"), ("user", "<tool_response>4</tool_response>"), ("assistant", "four")],
    [("assistant", "I begin </think> here")],
]
MARKS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"]


def make_chat():
    base = json.load(open("models/nano/tokenizer.json"))
    base["added_tokens"] = [END] + [token(2048 + i, s, special=True) for i, s in enumerate(MARKS)]
    t = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(base)), bos_token="<|begin_of_text|>")
    for name, template in TEMPLATES.items():
        cases = []
        for chat in CHATS:
            turns = [{"role": r, "content": c} for r, c in chat]
            cases.append({"turns": chat, "ids": t.apply_chat_template(turns, chat_template=template, add_generation_prompt=True, tokenize=True, return_dict=False)})
        yield {"name": name, "template": template, "added_tokens": base["added_tokens"], "cases": cases}


os.makedirs(GOLDEN, exist_ok=True)
write("nano.json", plain(Tokenizer.from_file("models/nano/tokenizer.json"), 200, 1))
write("rules.json", make_rules())
write("chat.json", make_chat())
for path in glob.glob("models/smollm2/*.gguf"):
    write("smollm2.json", plain(oracles.from_gguf(path)[0], 100, 2))
if os.path.exists("models/qwen/tokenizer.json"):
    write("qwen.json", plain(Tokenizer.from_file("models/qwen/tokenizer.json"), 100, 3))
