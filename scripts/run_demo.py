#!/usr/bin/env python3
"""Generates from a model on a long document with dense attention and with FFD, and prints the two
runs side by side.

usage: scripts/run_demo.py --binary build/longdecode --model MODEL.gguf --document TEXT[.gz]

The prompt is the chat template around a slice of the document (about --prompt-tokens tokens) and
a question; both runs are greedy, so that every difference comes from the attention method. The
default document is the Jargon File 4.4.7 (public domain; Debian package jargon-text).
"""
import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

QUESTION = "Summarize the text above in a few sentences. What is it about?"
CHAT_TOKENS = 64  # of the chat template and the question, roughly
CHARACTERS_PER_TOKEN = 8  # more than prose has; the slice is then cut by the real count


def fail(message):
    sys.exit(f"run_demo: error: {message}")


def need_file(path, what, hint):
    if not path.is_file():
        fail(f"{what} is missing: {path} ({hint})")


def read_document(path, start_at):
    """The document from the last line that starts with `start_at` (chapter titles also stand in the
    table of contents), or all of it."""
    opened = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")
    try:
        with opened as file:
            text = file.read().decode("utf-8", errors="replace")
    except (OSError, EOFError) as error:
        fail(f"document {path} cannot be read: {error}")
    start = text.rfind("\n" + start_at) + 1 if start_at else 0
    if not text[start:].strip():
        fail(f"document {path} has no text")
    return text[start:]


def longdecode(binary, arguments, show_progress=False):
    """Runs the command; its JSON output as a dict."""
    command = [str(binary), *map(str, arguments), "--json", "-"]
    progress = None if show_progress else subprocess.PIPE
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=progress, check=False)
    if result.returncode != 0:
        detail = (result.stderr or b"").decode(errors="replace").strip()
        fail(f"{' '.join(command)} failed with code {result.returncode} {detail}")
    return json.loads(result.stdout)


def count_tokens(args, text, folder):
    path = folder / "slice.txt"
    path.write_text(text, encoding="utf-8")
    return longdecode(args.binary, ["tokenize", "-m", args.model, "-f", path])["num_tokens"]


def cut_to_tokens(args, text, folder):
    """The beginning of the text that has about args.prompt_tokens tokens, cut at the end of a
    paragraph where one is near."""
    wanted = args.prompt_tokens - CHAT_TOKENS
    text = text[:wanted * CHARACTERS_PER_TOKEN]
    if count_tokens(args, text, folder) <= wanted:
        return text
    fits, exceeds = 1, len(text)  # characters
    while exceeds - fits > wanted // 50:
        middle = (fits + exceeds) // 2
        if count_tokens(args, text[:middle], folder) <= wanted:
            fits = middle
        else:
            exceeds = middle
    text = text[:fits]
    paragraph = text.rfind("\n\n")
    return text[:paragraph] if paragraph > 0.97 * len(text) else text


def first_difference(dense, ffd):
    """Index of the first generated token that differs, or None."""
    pairs = zip(dense["token_ids"], ffd["token_ids"])
    for index, (left, right) in enumerate(pairs):
        if left != right:
            return index
    shorter, longer = sorted([len(dense["token_ids"]), len(ffd["token_ids"])])
    return None if shorter == longer else shorter


def words_at_difference(dense, ffd):
    """The last words that the texts share, and the next few of each."""
    left, right = dense["text"], ffd["text"]
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    start = max(left.rfind(" ", 0, common), 0)  # from the beginning of the word
    shared = " ".join(left[:start].split()[-6:])
    return shared, *(" ".join(text[start:].split()[:6]) for text in (left, right))


def print_table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, *cells in rows:
        print(f"  {name:<{widths[0]}}  {cells[0]:>{widths[1]}}  {cells[1]:>{widths[2]}}")


def rate(value):
    return "-" if value is None else f"{value:.1f}"


def report(dense, ffd):
    def row(name, show):
        return [name, show(dense), show(ffd)]

    print_table([
        ["", "dense", "ffd"],
        row("prompt tokens", lambda run: str(run["prompt_tokens"])),
        row("generated tokens", lambda run: str(run["num_generated"])),
        row("prefill tok/s", lambda run: rate(run["prefill_tok_s"])),
        row("decode tok/s", lambda run: rate(run["decode_tok_s"])),
        row("kept_fraction", lambda run: f"{run['kept_fraction']:.3f}"),
        row("KV MiB read per token", lambda run: f"{run['kv_bytes_read_per_token'] / 2**20:.2f}"),
        row("KV cache MiB", lambda run: f"{run['kv_bytes'] / 2**20:.1f}"),
        row("peak memory MiB", lambda run: f"{run['peak_rss_bytes'] / 2**20:.0f}"),
    ])
    index = first_difference(dense, ffd)
    if index is None:
        print(f"\n  The texts are equal ({dense['num_generated']} tokens).")
        return
    shared, left, right = words_at_difference(dense, ffd)
    print(f"\n  The texts first differ at generated token {index}, after \"... {shared}\":")
    print(f"    dense: {left}\n    ffd:   {right}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default="build/longdecode")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--document", type=pathlib.Path, required=True, help="text, or text.gz")
    parser.add_argument("--start-at", default="Chapter 1. Hacker Slang",
                        help="line of the document to start at, if it has one (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=4500, help="default: %(default)s")
    parser.add_argument("--predict", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--ffd-flags", default="--dense-layers 0",
                        help="more flags of the FFD run (default: %(default)s)")
    args = parser.parse_args()
    if args.prompt_tokens <= 2 * CHAT_TOKENS:
        fail(f"--prompt-tokens is {args.prompt_tokens}; it must be above {2 * CHAT_TOKENS}")
    need_file(args.binary, "the command", "build it with `make build`")
    need_file(args.model, "the model", "`make run` fetches it; any GGUF file can be given instead")
    need_file(args.document, "the document", "Debian package jargon-text, or any UTF-8 text")

    with tempfile.TemporaryDirectory(prefix="longdecode-") as name:
        folder = pathlib.Path(name)
        text = cut_to_tokens(args, read_document(args.document, args.start_at), folder)
        prompt = folder / "prompt.txt"
        prompt.write_text(f"{text}\n\n{args.question}", encoding="utf-8")
        runs = {}
        for method, flags in (("dense", []), ("ffd", args.ffd_flags.split())):
            print(f"{method}: prefill and {args.predict} tokens of greedy decoding", file=sys.stderr,
                  flush=True)
            runs[method] = longdecode(
                args.binary,
                ["generate", "-m", args.model, "-f", prompt, "--chat", "-n", args.predict,
                 "--temp", "0", "--method", method, "--progress", *flags], show_progress=True)
    dense, ffd = runs["dense"], runs["ffd"]
    print(f"\n{dense['model_name']} on {args.document}, {dense['num_threads']} threads"
          f" (ffd: {args.ffd_flags or 'defaults'})\n")
    report(dense, ffd)
    for method, run in runs.items():
        print(f"\n--- {method}: {run['stop_reason']} ---\n{run['text'].strip()}")


if __name__ == "__main__":
    main()
