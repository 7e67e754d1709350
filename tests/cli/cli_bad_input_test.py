#!/usr/bin/env python3
"""Bad input gets one clear line on stderr and exit code 2: never a crash, nothing half-written."""
import json
import os
import subprocess
import unittest

from support import (BINARY, HAS_MODEL, MODEL, NO_MODEL, STRING, TINY_LLAMA, Refusals, environment,
                     gguf, run)


class BadInput(Refusals):
    def test_command_line(self):
        self.refused([], "no command given", "generate")
        self.refused(["explode"], "unknown command explode", "generate")
        self.refused(["bench"], "no command given", "attention, model")
        self.refused(["bench", "explode"], "unknown command explode", "attention, model")
        self.refused(["generate", "--explode"], "unknown option --explode")
        self.refused(["generate", "-p", "a", "b", "c"], 'not expected: "b", "c"', "quotes")
        self.refused(["generate", "-p", "x"], "-m FILE", "LONGDECODE_MODEL")
        self.refused(["generate", "-m", "x.gguf"], "-p TEXT", "-f FILE")
        self.refused(["generate", "-m", "x.gguf", "-p", "x", "-f", "y"], "-p and -f")
        self.refused(["tokenize", "-p", "x"], "-m FILE")
        self.refused(["tokenize", "-m", "x.gguf", "-p", "x", "-p", "y"], "--prompt")
        several = ["generate", "-m", "x.gguf", "-p", "x", "-p", "y"]
        self.refused([*several, "-i"], "2 prompts; -i allows one")
        self.refused([*several, "--prompt-cache", "c"], "2 prompts; --prompt-cache allows one")
        self.refused([*several, "-n", "0"], "-n is 0; several prompts need 1 or more")
        self.refused([*several, "-p", ""], "prompt 2 (-p) is empty")
        self.refused([*several, "--parallel", "9"], "--parallel is 9", "8")
        self.refused(["generate", "-m", "x.gguf", "-f", "-", "-f", "-"], "-f - is given twice")
        self.refused(["dump-qkv", "-m", "x.gguf", "-f", "x", "-o", "-"], "-o is -", "a path")
        self.refused(["generate", "-m", "x.gguf", "-p", "x", "--prompt-cache", "-"],
                     "--prompt-cache is -")
        self.refused(["generate", "-n", "1", "-n", "2"], "--predict is given 2 times; allowed: once")
        self.refused(["info", "--json", "a", "--json", "a"], "--json is given 2 times")
        self.refused(["generate", "-n"], "--predict has no value; allowed: an integer")
        self.refused(["info", "-m"], "--model has no value; allowed: a file name")
        self.refused(["bench", "attention", "--kv-len"], "--kv-len has no value; allowed: an integer")
        for flag in ["--delta", "--margin-sigmas"]:
            self.refused(["bench", "attention", "--method", "dense", flag, "nan"], flag, "nan")

    def test_numbers_that_would_become_others(self):
        generate = ["generate", "-m", "x.gguf", "-p", "x"]
        bench = ["bench", "attention"]
        for args, part in [(generate + ["--predict", ""], "the value is empty; allowed: an integer"),
                           (generate + ["--temp", ""], "the value is empty; allowed: a number"),
                           (bench + ["--seed", ""], "the value is empty"),
                           (generate + ["--predict", "010"], '"010" is not decimal'),
                           (generate + ["--predict", "0x10"], '"0x10" is not decimal'),
                           (bench + ["--seed", "99999999999999999999"],
                            "99999999999999999999 is out of range"),
                           (generate + ["--temp", "1e300"], "1e300 is out of range"),
                           (generate + ["--predict", " 010"], '" 010" is not decimal'),
                           (generate + ["--dense-layers", "1,010"], '"010" is not decimal'),
                           (bench + ["--margin-sigmas", "1,1e300"], "1e300 is out of range"),
                           (bench + ["--flush-bytes", "010"], '"010"; allowed: 0 to'),
                           (bench + ["--flush-bytes", "-1"], '"-1"; allowed: 0 to'),
                           (bench + ["--flush-bytes", "99999999999999G"], '"99999999999999G"')]:
            self.refused(args, args[-2], part)
        huge = "99999999999999999999"
        for args, text, bits in [(generate + ["--predict"], huge, 64),
                                 (generate + ["--predict"], f" {huge}", 64),
                                 (generate + ["--predict"], "-9223372036854775809", 64),
                                 (generate + ["--threads"], "2147483648", 32),
                                 (generate + ["--top-k"], "-2147483649", 32),
                                 (generate + ["--dense-layers"], "4294967296", 32),
                                 (["bench", "model", "-m", "x", "--n-depth"], huge, 64),
                                 (["bench", "model", "-m", "x", "--batch"], "2147483648", 32),
                                 (bench + ["--kv-len"], huge, 64)]:
            self.refused([*args, text], f"{args[-1]}: {text} is out of range; allowed: an integer of "
                         f"{bits} bits")
        self.refused([*bench, "--kv-len", f"1,{huge}"], f"--kv-len: {huge} is out of range")
        self.refused([*bench, "--kv-len", "99999999999"], "--kv-len is 99999999999; allowed")
        self.refused([*generate, "-n", f"{huge}x"], f'--predict is "{huge}x"; allowed: an integer')
        self.refused(generate, "LONGDECODE_N_PREDICT", '"010" is not decimal',
                     env={"LONGDECODE_N_PREDICT": "010"})

    def test_output_that_is_an_input(self):
        model = self.write("model.gguf", b"weights")
        text = self.write("text.txt", b"words")
        link = self.folder / "link.json"
        link.symlink_to(text)
        generate = ["generate", "-m", model, "-f", text]
        self.refused(generate + ["--json", model], "--json", model, "another file")
        self.refused(generate + ["--json", text], "--json", text)
        self.refused(generate + ["--json", link], "--json", link)
        self.refused(generate + ["--prompt-cache", text], "--prompt-cache", text)
        cache = self.folder / "new"
        self.refused(generate + ["--json", cache, "--prompt-cache", cache], "--json", cache)
        dangling = self.folder / "dangling"
        dangling.symlink_to("new")
        self.refused(generate + ["--json", dangling, "--prompt-cache", cache], "--json", cache)
        for command in ("tokenize", "perplexity", "bench model"):
            self.refused([*command.split(), "-m", model, "-f", text, "--json", model], "--json")
        self.refused(["dump-qkv", "-m", model, "-f", text, "-o", model], "-o", model)
        self.refused(["info", "-m", model, "--json", model], "--json", model)
        self.assertEqual(model.read_bytes(), b"weights")
        self.assertEqual(text.read_bytes(), b"words")

    def test_prompt_without_end(self):
        self.refused(["generate", "-m", "x.gguf", "-f", "/dev/zero"], "/dev/zero is larger than")

    def test_stderr_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([BINARY, "generate", "-m", "nofile", "-p", "x"], stderr=full,
                                    check=False)
        self.assertEqual(result.returncode, 2)

    def test_values(self):
        cases = [
            (["-n", "-1"], "-n is -1"), (["-n", "many"], "--predict"),
            (["-n", "99999999999999999999"], "99999999999999999999 is out of range"), (["-s", "5000000000"], "-s is"),
            (["-c", "-5"], "-c is -5"), (["-t", "0"], "-t is 0", "1"), (["-t", "-2"], "-t is -2"),
            (["-t", "100000"], "-t is 100000"),
            (["-s", "-2"], "-s is -2"),
            (["--temp", "-0.5"], "--temp is -0.5"), (["--temp", "nan"], "--temp is nan"),
            (["--temp", "inf"], "--temp is inf"), (["--top-k", "-1"], "--top-k is -1"),
            (["--top-p", "1.5"], "--top-p is 1.5", "0 and 1"), (["--top-p", "nan"], "--top-p"),
            (["--method", "magic"], "magic", "dense, ffd"),
            (["--delta", "-1"], "--delta is -1"), (["--delta", "nan"], "--delta is nan"),
            (["--margin-sigmas", "-1"], "--margin-sigmas is -1"),
            (["--sink-tokens", "-1"], "--sink-tokens is -1"),
            (["--recent-tokens", "-1"], "--recent-tokens is -1"),
            (["--dense-layers", "0,-1"], "--dense-layers is -1"),
            (["--dense-layers", "0,x"], "--dense-layers"),
            (["--layer-delta", "1"], '--layer-delta has "1"', "LAYER=DELTA"),
            (["--layer-delta", "x=1"], '"x=1"'), (["--layer-delta", "0=7,1=x"], '"1=x"'),
            (["--layer-delta", "0=1e999"], "0=1e999", "up to 3.4e38"),
            (["--layer-delta", "99999999999999999999=1"], "99999999999999999999", "64 bits"),
            (["--layer-delta", "-1=5"], "-1"), (["--layer-delta", "0=-5"], "is -5"),
            (["--layer-delta", "0=nan"], "is nan"), (["--layer-delta", "0=1,0=2"], "twice"),
            (["--layer-delta", "0=1", "--dense-layers", "0"], "and in --dense-layers"),
            (["--kv-type", "q4"], "q4", "f16, bf16, f32"),
            (["--device", "tpu"], "tpu", "auto, cpu"),
        ]
        for flags, *parts in cases:
            self.refused(["generate", "-m", "x.gguf", "-p", "x", *flags], *parts)

    def test_values_say_what_is_allowed(self):
        generate = ["generate", "-m", "x.gguf", "-p", "x"]
        self.refused([*generate, "--temp", "abc"], '--temp is "abc"; allowed: a number')
        self.refused([*generate, "-n", "many"], '--predict is "many"; allowed: an integer')
        self.refused([*generate, "--top-k", "1.5"], '"1.5"; allowed: an integer')
        for text in ("0,,1", "", ",", "0,", ",0", "0,x", "0,1.5"):
            self.refused([*generate, "--dense-layers", text],
                         f'--dense-layers is "{text}"; allowed: integers, separated by commas')
        for text in ("", "0=1,,1=2"):
            self.refused([*generate, "--layer-delta", text], 'has ""; allowed: LAYER=DELTA, e.g.')
        for text in ("", "off,"):
            self.refused([*generate, "--graph", text], "--graph is", "any-length, block, off")
        bench = ["bench", "attention"]
        for flag, allowed in (("--op", "gqa, mla"), ("--method", "dense, ffd"),
                              ("--dtype", "bf16, f16, f32"), ("--device", "auto, cpu, cuda"),
                              ("--workload", "planted, clustered, dump"), ("--flush-bytes", "0 to")):
            self.refused([*bench, flag, ""], flag, f'is ""; allowed: {allowed}')
        self.refused([*bench, "--kv-len", "128,,256"], '--kv-len is "128,,256"')
        self.refused([*bench, "--kept", "0.5,"], '--kept is "0.5,"; allowed: numbers')
        self.refused([*bench, "--method", "dense,"], '--method is ""; allowed: dense, ffd')
        self.refused(["bench", "model", "-m", "x", "-d", ""], 'is ""; allowed: integers')
        self.refused(["dump-qkv", "-m", "x", "-f", "x", "-o", "y", "--layers", "1,,2"], '"1,,2"')

    def test_environment(self):
        generate = ["generate", "-m", "x.gguf", "-p", "x"]
        cases = {"TEMP": ("nan", "--temp is nan"), "N_PREDICT": ("abc", '--predict is "abc"'),
                 "CTX_SIZE": ("-4", "-c is -4"), "SEED": ("-2", "-s is -2"),
                 "THREADS": ("9999", "-t is 9999; it must be within 1 and 1024"),
                 "TOP_K": ("x", '--top-k is "x"'), "TOP_P": ("2", "--top-p is 2"),
                 "METHOD": ("magic", '"magic"; allowed: dense, ffd'),
                 "DEVICE": ("tpu", '"tpu"; allowed: auto, cpu'), "KV_TYPE": ("q4", '"q4"'),
                 "GRAPH": ("magic", '"magic"; allowed: any-length, block, off'),
                 "DELTA": ("-1", "--delta is -1"), "LAYER_DELTA": ("1", '--layer-delta has "1"'),
                 "MARGIN_SIGMAS": ("inf", "--margin-sigmas is inf"),
                 "CERTIFIED": ("maybe", '--certified is "maybe"; allowed: true or false'),
                 "CHAT": ("maybe", '--chat is "maybe"'),
                 "SINK_TOKENS": ("-1", "--sink-tokens is -1"),
                 "PARALLEL": ("0", "--parallel is 0; it must be within 1 and 8"),
                 "FFD_MIN_LEN": ("-1", "--ffd-min-len is -1"),
                 "RECENT_TOKENS": ("2.5", '--recent-tokens is "2.5"'),
                 "DENSE_LAYERS": ("0,,1", '--dense-layers is "0,,1"')}
        for name, (value, *parts) in cases.items():
            variable = f"LONGDECODE_{name}"
            self.refused(generate, *parts, f"(set by {variable})", env={variable: value})
        self.refused([*generate, "--temp", "-3"], "--temp is -3; it must be >= 0 and finite",
                     env={"LONGDECODE_TEMP": "nan"})
        listed = run("generate", "--help").stdout.decode()
        for name in cases:
            self.assertIn(f"LONGDECODE_{name}", listed)
        self.assertEqual(listed.count("(Env:LONGDECODE_"), len(cases) + 2)  # MODEL, PROMPT_CACHE

    def test_empty_file_names(self):
        generate = ["generate", "-m", "x.gguf"]
        self.refused([*generate, "-p", "x", "--json", ""], "--json", "empty")
        self.refused([*generate, "-f", ""], "--file", "empty")
        self.refused(["generate", "-m", "", "-p", "x"], "--model", "empty")
        self.refused([*generate, "-p", "x", "--prompt-cache", ""], "--prompt-cache", "empty")
        self.refused(["info", "--json", ""], "--json", "empty")
        self.refused(["bench", "attention", "--json", ""], "--json", "empty")
        self.refused(["bench", "attention", "--shapes", ""], "--shapes", "empty")

    def test_bench_attention(self):
        bench = ["bench", "attention", "--kv-len", "128"]
        self.refused([*bench, "--page-size", "16"], "--page-size is 16", "--method ffd: 64, 128")
        self.refused([*bench, "--method", "dense", "--page-size", "48"], "--page-size is 48")
        self.refused([*bench, "--head-dim", "72"], "--head-dim is 72")
        self.refused([*bench, "--num-q-heads", "5"], "--num-q-heads is 5")
        self.refused([*bench, "--op", "mla", "--method", "ffd"], "--method is ffd", "--op mla")
        self.refused([*bench, "--shapes", self.folder / "none.json"], "none.json",
                     "No such file or directory")
        self.refused([*bench, "-t", "4096"], "--threads is 4096; allowed: 1 to 1024")
        dump = [*bench, "--workload", "dump"]
        self.refused(dump, "--dump is empty")
        self.refused([*dump, "--dump", self.folder / "none"], "none", "No such file or directory")
        self.refused([*dump, "--dump", self.folder], "is a directory")
        self.refused([*dump, "--dump", "/dev/zero"], "/dev/zero", "is a device", "regular file")
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        self.refused([*dump, "--dump", fifo], "is a FIFO", "regular file")
        text = self.write("text.safetensors", b"{}")
        self.refused([*dump, "--dump", text], "text.safetensors", "no header")
        self.refused([*dump, "--dump", text, "--json", text], "--json", "which this command uses too")
        self.refused([*bench, "--workload", "chat"], "allowed: planted, clustered, dump")
        self.refused([*bench, "--dump", text], "--workload is planted", "with --dump", "dump")

    def test_files_without_an_end(self):
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        for path, kind in (("/dev/zero", "is a device"), (fifo, "is a FIFO")):
            self.refused(["generate", "-m", path, "-p", "x"], path, kind)
            self.refused(["tokenize", "-m", path, "-p", "x"], path, kind)
            self.refused(["info", "-m", path], path, kind)
            self.refused(["generate", "-m", "x", "-p", "x", "--prompt-cache", path],
                         f"--prompt-cache {path} is no regular file")
        self.refused(["generate", "-m", "x", "-f", "/dev/zero"], "/dev/zero", "is larger than")
        self.refused(["bench", "attention", "--shapes", "/dev/zero"], "/dev/zero", "is not JSON")
        # A writer that ends: a prompt of a process.
        if HAS_MODEL:
            writer = subprocess.Popen(["sh", "-c", f"printf abc > '{fifo}'"])
            result = run("tokenize", "-m", MODEL, "-f", fifo)
            self.assertEqual((writer.wait(), result.returncode), (0, 0), result.stderr)

    def test_prompts(self):
        generate = ["generate", "-m", "x.gguf"]
        self.refused([*generate, "-p", ""], "empty")
        self.refused([*generate, "-f", self.write("empty.txt", b"")], "empty.txt", "empty")
        byte_order_mark = self.write("mark.txt", b"\xef\xbb\xbf")
        self.refused([*generate, "-f", byte_order_mark], "mark.txt", "empty")
        result = run(*generate, "-f", "-", input=byte_order_mark.read_bytes())
        self.assertIn(b"empty", result.stderr)
        self.refused([*generate, "-f", self.folder / "none.txt"], "none.txt", "No such file")
        self.refused([*generate, "-f", self.folder], "is a directory")
        self.refused([*generate, "-f", self.write("latin1.txt", b"caf\xe9 au lait")],
                     "not UTF-8", "0xe9", "offset 3")
        self.refused([*generate, "-f", self.write("cut.txt", b"\xe4\xb8")], "not UTF-8")

    def test_json_is_checked_before_the_work(self):
        for command in (["generate", "-m", "none.gguf", "-p", "x"], ["info"],
                        ["tokenize", "-m", "none.gguf", "-p", "x"]):
            self.refused([*command, "--json", self.folder], "is a directory")
            self.refused([*command, "--json", self.folder / "no" / "x.json"], "cannot be written")
        if os.geteuid() != 0:  # root may write anything
            kept = self.write("kept.json", b"{}")
            kept.chmod(0o400)
            self.refused(["info", "--json", kept], "cannot be written")

    def test_model_files(self):
        def generate(path):
            return ["generate", "-m", path, "-p", "ab"]

        tiny = gguf(TINY_LLAMA, [("token_embd.weight", (64, 2), 0, bytes(64 * 2 * 4))])
        none = self.folder / "none.gguf"
        for command in ("generate -p x", "generate -p x -p y", "generate -i", "tokenize -p x", "info",
                        "perplexity -f x", "bench model", "study-format -f x"):
            self.refused([*command.split(), "-m", none], f"-m: cannot open '{none}': No such file")
        self.refused(["dump-qkv", "-f", "x", "-o", self.folder / "x", "-m", none], "-m: cannot open")
        self.refused(["generate", "-p", "x"], f"-m: cannot open '{none}'", "(set by LONGDECODE_MODEL)",
                     env={"LONGDECODE_MODEL": str(none)})
        self.refused(generate(self.folder), f"-m: '{self.folder}' is a directory")
        self.refused(generate(self.write("empty.gguf", b"")), "empty.gguf")
        self.refused(generate(self.write("text.gguf", b"hello, this is no model")), "text.gguf")
        for size in (4, 12, 24, 100, len(tiny) - 600):
            self.refused(generate(self.write("cut.gguf", tiny[:size])), "cut.gguf")
        self.refused(generate(self.write("lacks.gguf", tiny)), "lacks.gguf")
        mamba = [("general.architecture", STRING, "mamba"), *TINY_LLAMA[1:]]
        self.refused(generate(self.write("arch.gguf", gguf(mamba))), "mamba", "llama")
        kind = gguf(TINY_LLAMA, [("token_embd.weight", (64, 2), 999, bytes(64 * 2 * 4))])
        self.refused(generate(self.write("kind.gguf", kind)), "token_embd.weight", "999")
        ints = [pair if pair[0] != "llama.block_count" else (*pair[:2], 99999)
                for pair in TINY_LLAMA]
        self.refused(generate(self.write("ints.gguf", gguf(ints))), "ints.gguf",
                     "'llama.block_count' is 99999; 1 to 4096 is allowed")
        kinds = [pair if pair[0] != "llama.block_count" else (pair[0], STRING, "one")
                 for pair in TINY_LLAMA]
        self.refused(generate(self.write("kinds.gguf", gguf(kinds))), "kinds.gguf", "an integer")
        rows = gguf(TINY_LLAMA, [("token_embd.weight", (64, 3), 0, bytes(64 * 3 * 4))])
        self.refused(["tokenize", "-m", self.write("rows.gguf", rows), "-p", "ab"], "rows.gguf",
                     "2 tokens", "3 rows")

    @unittest.skipUnless(HAS_MODEL, NO_MODEL)
    def test_against_the_model(self):
        generate = ["generate", "-m", MODEL]
        self.refused([*generate, "-p", "x", "-c", "8193"], "-c is 8193", "8192")
        self.refused([*generate, "-p", "a b c d e f g h", "-c", "4"], "8 tokens", "-c is 4")
        self.refused([*generate, "-p", "a b c d", "-c", "4"], "no room")
        self.refused([*generate, "-f", self.write("long.txt", b"one two three " * 4000)],
                     "12001 tokens", "8192")
        self.refused([*generate, "-p", "x", "--method", "ffd", "--dense-layers", "0,30"],
                     "--dense-layers has 30", "0 to 29")
        self.refused([*generate, "-p", "x", "--method", "ffd", "--layer-delta", "30=inf"],
                     "--layer-delta has 30", "0 to 29")
        self.refused([*generate, "-p", "\x04"], "no tokens")
        self.refused([*generate, "-p", "x", "-p", "\x04"], "prompt 1 (-p) has no tokens")
        self.refused([*generate, "-p", "x", "-p", "a b c d e f g h", "-c", "4"],
                     "prompt 1 (-p) has 8 tokens", "-c is 4")
        with open(MODEL, "rb") as file:
            head = file.read(4 << 20)
        for size in (1000, 1 << 20, len(head)):
            self.refused(["generate", "-m", self.write("cut.gguf", head[:size]), "-p", "x"],
                         "cut.gguf")

    def test_stdout_that_cannot_be_written(self):
        closed = subprocess.run(["sh", "-c", f'"{BINARY}" info --json - >&-'], check=False,
                                stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(closed.returncode, 1, closed.stderr)
        self.assertIn(b"cannot write stdout", closed.stderr)
        with open("/dev/full", "wb") as full:
            result = run("info", stdout=full)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"No space left", result.stderr)
        for args in (["--help"], ["--version"], ["generate", "--help"], ["bench", "--help"],
                     ["bench", "attention", "--help"], ["info", "--json", "-"],
                     ["bench", "attention", "--kv-len", "64", "--kept", "1", "--reps", "1",
                      "--flush-bytes", "0"]):
            for name, code in (("> /dev/full", 1), (">&-", 1)):
                line = " ".join([f'"{BINARY}"', *args, name])
                result = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, check=False,
                                        timeout=100, env=environment())
                with self.subTest(line=line):
                    self.assertEqual(result.returncode, code, result.stderr)
                    self.assertIn(b"cannot write stdout", result.stderr)
        result = run("info", "--json", "/dev/full")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"cannot write /dev/full", result.stderr)

    def test_closed_descriptors_are_not_reused(self):
        out = self.folder / "out.json"
        for closed in ("2>&-", "<&- 2>&-", "<&- 2>&- 3>&-"):
            line = f'"{BINARY}" bench attention --kv-len 64 --kept 1 --reps 1 --flush-bytes 0 ' \
                   f'--json "{out}" {closed}'
            result = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, check=False,
                                    timeout=100, env=environment())
            with self.subTest(closed=closed):
                self.assertEqual(result.returncode, 0)
                self.assertEqual(len(json.loads(out.read_text())), 2)  # progress went elsewhere
                out.unlink()
        line = f'"{BINARY}" info --json "{out}" >&-'  # its table has nowhere to go
        result = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, check=False, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertFalse(out.exists())
        line = f'"{BINARY}" generate -m x.gguf -f - <&-'
        result = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, check=False, timeout=60)
        self.assertEqual(result.returncode, 2, result.stderr)

    def test_help_and_version_are_no_errors(self):
        for args, part in ((["tokenize", "--help"], b"Examples:"), (["--version"], b"longdecode 0."), (["--help"], b"generate"),
                           (["generate", "--help"], b"Examples:"), (["info", "--help"], b"--json")):
            result = run(*args)
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            self.assertIn(part, result.stdout)


if __name__ == "__main__":
    unittest.main()
