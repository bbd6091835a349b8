"""Hugging Face `tokenizers` objects of the models that hydrahead is compared with, and texts that are hard to tokenize."""
import base64
import struct
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import AddedToken

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def byte_letters():
    """GPT-2's alphabet: the printable character that stands for each byte."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, n = {b: chr(b) for b in own}, 0
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + n)
            n += 1
    return letters


LETTERS = byte_letters()


def read_gguf_metadata(path):
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as f:
        n_keys = struct.unpack("<IIQQ", f.read(24))[3]

        def string():
            return f.read(struct.unpack("<Q", f.read(8))[0]).decode()

        def value(kind):
            if kind == 8:
                return string()
            if kind == 9:
                item, n = struct.unpack("<IQ", f.read(12))
                return [value(item) for _ in range(n)]
            return struct.unpack("<" + formats[kind], f.read(struct.calcsize(formats[kind])))[0]

        pairs = ((string(), struct.unpack("<I", f.read(4))[0]) for _ in range(n_keys))
        return {key: value(kind) for key, kind in pairs}


def from_gguf(path):
    """The tokenizer of a SmolLM2 GGUF file: its vocabulary with SmolLM2's own rules."""
    m = read_gguf_metadata(path)
    assert m["tokenizer.ggml.pre"] == "smollm"
    tokens = m["tokenizer.ggml.tokens"]
    merges = [tuple(x.split(" ")) for x in m["tokenizer.ggml.merges"]]
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s, k in zip(tokens, m["tokenizer.ggml.token_type"]) if k == 3])
    return t, m


def read_ranks(path):
    with open(path, "rb") as f:
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in f if line.strip())}


def split_token(ranks, token):
    """The two tokens whose merge made this one: BPE of its bytes with the lower ranks only. None: no merge makes it."""
    parts, limit = [bytes([b]) for b in token], ranks[token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], limit))
        if ranks.get(parts[best] + parts[best + 1], limit) >= limit:
            return None
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def from_ranks(path, pattern, specials, ignore_merges=False, normalizer=True):
    """A tokenizer of Qwen's shape from a .tiktoken file. `specials`: (content, special) pairs with ids behind the ranks'."""
    ranks = read_ranks(path)
    write = lambda b: "".join(LETTERS[x] for x in b)
    pairs = [split_token(ranks, token) for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    merges = [tuple(map(write, pair)) for pair in pairs if pair]
    t = Tokenizer(models.BPE(vocab={write(b): r for b, r in ranks.items()}, merges=merges, ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.add_tokens([AddedToken(s, special=special, normalized=False) for s, special in specials])
    return t


QWEN3_SPECIALS = [(f"<|{x}|>", True) for x in (
    "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start vision_end "
    "vision_pad image_pad video_pad").split()] + [("<tool_call>", False), ("</tool_call>", False)] + [
    (f"<|{x}|>", False) for x in "fim_prefix fim_middle fim_suffix fim_pad repo_name file_sep".split()] + [
    (x, False) for x in ("<tool_response>", "</tool_response>", "<think>", "</think>")]

ASSIGNED = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]  # Unicode 14 in Python 3.11
PIECES = ("'s 't 're 've 'm 'll 'd 'S 'T 'RE 'Ve 'M 'lL 'D '\u017f ' '' \n \r \r\n \n\n \t \x0b \x0c \x85 \xa0 \u180e \u2028 \u3000 "
          "0 1 12 123 1234 ½ ² Ⅷ ٣ a A the The don ß ẞ ǅ İ ı ﬁ é e\u0301 \u0301 \u0316 \u0301\u0316 가 \u1100\u1161\u11a8 漢字 ひらがな คำ हिन्दी "
          "🙂 👩\u200d👩 🇨🇭 - -- … . ... ! ?! <|im_end|> <|endoftext|> <think> <| |> { } // \\ _ __init__ \x00 \x1a \x7f \ufeff \ufffd").split(" ") + [" ", "  ", "   "]


def hard_text(rng, n):
    """About n characters: pieces that meet each other in ways that rules treat specially."""
    out, length = [], 0
    while length < n:
        kind = rng.random()
        if kind < 0.6:
            piece = rng.choice(PIECES)
        elif kind < 0.8:
            piece = chr(rng.randrange(128))
        else:
            piece = rng.choice(ASSIGNED)
        if rng.random() < 0.3:
            piece *= rng.randrange(1, 5)
        out.append(piece)
        length += len(piece)
    return "".join(out)
