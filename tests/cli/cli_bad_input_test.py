#!/usr/bin/env python3
"""Bad input gets one clear line on stderr and exit code 2: never a crash, nothing half-written."""
import os
import pathlib
import subprocess
import tempfile
import unittest

from support import (BINARY, HAS_MODEL, MODEL, NO_MODEL, STRING, TINY_LLAMA, gguf, run)


class BadInput(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def refused(self, args, *parts, env=None, code=2):
        before = sorted(self.folder.iterdir())
        result = run(*args, env=env)
        error = result.stderr.decode(errors="replace")
        with self.subTest(args=[str(arg)[:80] for arg in args]):
            self.assertEqual(result.returncode, code, error)
            self.assertEqual(result.stdout, b"")
            lines = [line for line in error.splitlines() if not line.startswith("longdecode: note")]
            self.assertEqual(len(lines), 1, error)
            self.assertTrue(lines[0].startswith("longdecode: error: "), error)
            for part in parts:
                self.assertIn(str(part), lines[0])
            self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_command_line(self):
        self.refused([], "no command given", "generate")
        self.refused(["explode"], "unknown command explode", "generate")
        self.refused(["bench"], "no command given", "attention, model")
        self.refused(["bench", "explode"], "unknown command explode", "attention, model")
        self.refused(["generate", "--explode"], "--explode")
        self.refused(["generate", "-p", "x"], "-m FILE", "LONGDECODE_MODEL")
        self.refused(["generate", "-m", "x.gguf"], "-p TEXT", "-f FILE")
        self.refused(["generate", "-m", "x.gguf", "-p", "x", "-f", "y"], "-p and -f")
        self.refused(["tokenize", "-p", "x"], "-m FILE")

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
            (["-n", "99999999999999999999"], "-n is"), (["-s", "5000000000"], "-s is"),
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
            (["--layer-delta", "-1=5"], "-1"), (["--layer-delta", "0=-5"], "is -5"),
            (["--layer-delta", "0=nan"], "is nan"), (["--layer-delta", "0=1,0=2"], "twice"),
            (["--layer-delta", "0=1", "--dense-layers", "0"], "and in --dense-layers"),
            (["--kv-type", "q4"], "q4", "f16, bf16, f32"),
            (["--device", "tpu"], "tpu", "auto, cpu"),
        ]
        for flags, *parts in cases:
            self.refused(["generate", "-m", "x.gguf", "-p", "x", *flags], *parts)
        self.refused(["generate", "-m", "x.gguf", "-p", "x"], "--temp is -1",
                     env={"LONGDECODE_TEMP": "-1"})

    def test_prompts(self):
        generate = ["generate", "-m", "x.gguf"]
        self.refused([*generate, "-p", ""], "empty")
        self.refused([*generate, "-f", self.write("empty.txt", b"")], "empty.txt", "empty")
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
        self.refused(generate(self.folder / "none.gguf"), "none.gguf")
        self.refused(generate(self.folder), self.folder, "directory")
        self.refused(generate(self.write("empty.gguf", b"")), "empty.gguf")
        self.refused(generate(self.write("text.gguf", b"hello, this is no model")), "text.gguf")
        for size in (4, 12, 24, 100, len(tiny) - 600):
            self.refused(generate(self.write("cut.gguf", tiny[:size])), "cut.gguf")
        self.refused(generate(self.write("lacks.gguf", tiny)), "lacks.gguf")
        mamba = [("general.architecture", STRING, "mamba"), *TINY_LLAMA[1:]]
        self.refused(generate(self.write("arch.gguf", gguf(mamba))), "mamba", "llama")
        kind = gguf(TINY_LLAMA, [("token_embd.weight", (64, 2), 999, bytes(64 * 2 * 4))])
        self.refused(generate(self.write("kind.gguf", kind)), "token_embd.weight", "999")
        self.refused(["info", "-m", self.folder / "none.gguf"], "none.gguf")
        self.refused(["tokenize", "-m", self.folder / "none.gguf", "-p", "x"], "none.gguf")

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
        result = run("info", "--json", "/dev/full")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"cannot write /dev/full", result.stderr)

    def test_help_and_version_are_no_errors(self):
        for args, part in ((["--version"], b"longdecode 0."), (["--help"], b"generate"),
                           (["generate", "--help"], b"Examples:"), (["info", "--help"], b"--json")):
            result = run(*args)
            self.assertEqual((result.returncode, result.stderr), (0, b""))
            self.assertIn(part, result.stdout)


if __name__ == "__main__":
    unittest.main()
