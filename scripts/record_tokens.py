#!/usr/bin/env python3
"""Records the token ids of varied strings in tests/data/, for the tokenizer tests.

usage: scripts/record_tokens.py MODEL.gguf tests/data/smollm2_tokens.json

Two references must be installed (pip install xllamacpp tokenizers): llama.cpp, which reads the GGUF
file itself, and Hugging Face tokenizers, built from the file's vocabulary and merges with the
pre-tokenizer of the model (single digits, then the GPT-2 expression). The ids of llama.cpp are
recorded; where the other one differs, its ids stand beside them under "hf_ids".
"""
import argparse
import json
import pathlib
import struct
import sys
import urllib.request

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

TEXTS = [
    # prose
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they'll say we've won; it's what you'd expect, isn't it?",
    "DON'T SHOUT, IT'S RUDE AND THEY'RE LISTENING",
    "Antidisestablishmentarianism and floccinaucinihilipilification",
    "na\u00efve caf\u00e9 \u2014 \u201cquoted\u201d \u2026 \u00a320",
    # digits
    "0", "1234567890", "3.14159e-10, 0xDEADBEEF, 1,000,000", "v1.2.3-rc4 (2024-02-29)",
    "\u0661\u0662\u0663 \u0967\u0968\u0969 \u00b2\u00b3 \u216b \u00bd", "a1b22c333",
    # white space
    " ", "  ", "   leading and trailing   ", "\t\ttabs\tand  spaces \t mixed", "a\n\n\nb\n \n c",
    "line one\r\nline two\r\n\r\nline four", "trailing newline\n",
    "no-break\u00a0space\u2003em\u3000ideographic\u2028line\u0085next", "zero\u200bwidth\ufeffmark \u180e x",
    " " * 40 + "x", "x" + "\n" * 33, "5 6  7   8",
    # code
    "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}\n",
    "#include <vector>\nstd::vector<int> v{1,2,3};",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';",
    "<div class=\"a b\">&nbsp;</div>", "{\"key\": [null, true, -1.5e3], \"k2\": \"\\u00e9\"}",
    "a->b; c::d; e != f && !g || h; i <<= 2; \\n \\\\ `x` $y @z ~w ^v",
    # scripts
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u8fd9\u662f\u4e00\u4e2a\u6d4b\u8bd5\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5",
    # combining marks, emoji, symbols, planes above the first
    "e\u0301 a\u030a o\u0308 Z\u0351\u036b\u0343\u036a\u0302", "\U0001f600\U0001f44d\U0001f3fd\u2764\ufe0f",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family \U0001f1eb\U0001f1f7",
    "\u2200x\u2208\u211d: x\u00b2 \u2265 0 \u21d2 \u221a(x\u00b2) = |x|", "\U0001d4d0\U0001d4d1 \U00020000\U0002a6d6 \U00010348",
    # control characters and special tokens as text
    "bell\x07 null\x00 escape\x1b[31m del\x7f", "no token for \x04 or \x16\x1d!",
    "!\x04!", "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|><|im_end|> <| im_end|> <file_sep>x",
    # long
    "a" * 300, "ab" * 200 + "!" * 100, "supercalifragilistic" * 20,
]


def read_metadata(path):
    """The metadata of a GGUF file as a dict; strings are bytes."""
    with open(path, "rb") as file:
        def scalar(code):
            return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]

        def value(kind):
            if kind == STRING:
                return file.read(scalar("Q"))
            if kind == ARRAY:
                element, count = scalar("I"), scalar("Q")
                return [value(element) for _ in range(count)]
            return scalar(SCALARS[kind])

        if file.read(4) != b"GGUF":
            sys.exit(f"record_tokens: {path} is not a GGUF file")
        scalar("I"), scalar("Q")
        return {value(STRING).decode(): value(scalar("I")) for _ in range(scalar("Q"))}


def huggingface(metadata):
    """A function text, parse_special -> ids by Hugging Face tokenizers."""
    import tokenizers
    from tokenizers import models, pre_tokenizers

    tokens = [token.decode() for token in metadata["tokenizer.ggml.tokens"]]
    merges = []
    for merge in metadata["tokenizer.ggml.merges"]:
        left, _, right = merge.decode().partition(" ")
        merges.append((left, right))
    built = {}
    for special in (False, True):
        tokenizer = tokenizers.Tokenizer(
            models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False)])
        if special:
            tokenizer.add_special_tokens(
                [t for t, kind in zip(tokens, metadata["tokenizer.ggml.token_type"]) if kind == 3])
        built[special] = tokenizer
    return lambda text, special: built[special].encode(text, add_special_tokens=False).ids


def llama_cpp(path):
    """A function text, parse_special -> ids by llama.cpp."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    server = xllamacpp.Server(params)

    def encode(text, special):
        body = {"content": text, "add_special": False, "parse_special": special}
        request = urllib.request.Request(f"{server.listening_address}/tokenize",
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["tokens"]

    return encode


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    args = parser.parse_args()
    reference, second = llama_cpp(args.model), huggingface(read_metadata(args.model))
    rows = []
    for text in TEXTS:
        for special in (False, True):
            ids, other = reference(text, special), second(text, special)
            if special and ids == rows[-1]["ids"]:
                continue  # the text names no special token
            row = {"text": text, "parse_special": special, "ids": ids}
            if other != ids:
                row["hf_ids"] = other
                print(f"disagree on {text[:60]!r}: llama.cpp {ids[:20]}, Hugging Face {other[:20]}")
            rows.append(row)
    lines = ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows)
    args.output.write_text(f"[\n{lines}\n]\n", encoding="ascii")
    print(f"{args.output}: {len(rows)} rows of {len(TEXTS)} texts")


if __name__ == "__main__":
    main()
