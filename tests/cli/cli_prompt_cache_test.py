#!/usr/bin/env python3
"""generate --prompt-cache on the real model."""
import json
import os
import pathlib
import tempfile
import unittest

from support import HAS_MODEL, MODEL, NO_MODEL, QUICK, ROOT, run

PROMPT = (ROOT / "LICENSE").read_text(encoding="utf-8")[:900]  # more than a page and its ring
MORE = " And so the story"
FFD = ("--method", "ffd", "--sink-tokens", "16", "--recent-tokens", "16", "--delta", "2")


class PromptCacheTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "prompt.cache"

    def run_cached(self, prompt, *args):
        return run("generate", "-m", MODEL, "-p", prompt, "--prompt-cache", self.cache, *args)

    def generate(self, prompt, *args):
        result = self.run_cached(prompt, "-n", "6", "--temp", "0", *args, "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return json.loads(result.stdout)

    def refused(self, args, *parts):
        before = {path.name: path.read_bytes() for path in self.folder.iterdir()
                  if path.is_file()}
        result = run("generate", "-p", "x", *args)
        error = result.stderr.decode()
        self.assertEqual((result.returncode, result.stdout), (2, b""), error)
        self.assertEqual(len(error.splitlines()), 1, error)
        for part in parts:
            self.assertIn(str(part), error)
        after = {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
        self.assertEqual(after, before)


@unittest.skipUnless(HAS_MODEL, NO_MODEL)
@unittest.skipIf(QUICK, "LONGDECODE_TEST_QUICK is set")
class Restored(PromptCacheTest):
    def test_a_restored_run_gives_the_same_tokens(self):
        for method in (("--method", "dense"), FFD):
            with self.subTest(method=method):
                self.cache.unlink(missing_ok=True)
                first = self.generate(PROMPT, *method)
                saved = self.cache.read_bytes()
                again = self.generate(PROMPT, *method)
                self.assertEqual((first["cached_tokens"], again["cached_tokens"]),
                                 (0, first["prompt_tokens"]))
                self.assertEqual(again["token_ids"], first["token_ids"])
                self.assertEqual(again["kept_fraction"], first["kept_fraction"])
                self.assertIsNone(again["prefill_tok_s"])
                # Not the tokens alone: keys, values, rings and logits are the same bits.
                self.assertEqual(self.cache.read_bytes(), saved)
                self.assertEqual(os.listdir(self.folder), ["prompt.cache"])

    def test_a_longer_prompt_goes_on_from_the_generated_text(self):
        first = self.generate(PROMPT, *FFD)
        longer = self.generate(PROMPT + first["text"] + MORE, *FFD)
        # The last generated token was never fed to the model.
        self.assertEqual(longer["cached_tokens"], first["prompt_tokens"] + 5)
        again = self.generate(PROMPT + first["text"] + MORE, *FFD)
        self.assertEqual(again["token_ids"], longer["token_ids"])

    def test_verbose(self):
        result = self.run_cached("One two", "-n", "2", "--verbose")
        self.assertEqual(result.returncode, 0)
        for part in (b"load", b"tokenize", b"prompt cache", b"  linear", b"  attention",
                     b"  append", b"  sampling", b"per step"):
            self.assertIn(part, result.stderr)

    def test_what_does_not_fit_is_refused(self):
        self.assertEqual(self.run_cached("One two three four five six", "-n", "0").returncode, 0)
        model = ["-m", MODEL, "--prompt-cache", self.cache]
        self.refused(model, "differs from its 6 tokens at token 0")
        longer = self.run_cached("One two", "-n", "1")
        self.assertEqual(longer.returncode, 2)
        self.assertIn(b"holds 6 tokens; the prompt ends after 2", longer.stderr)
        self.refused([*model, "--method", "ffd"], "holds plain (dense) keys")
        self.refused([*model, "--kv-type", "f32"], "holds type f16; this run needs f32")
        other = self.folder / "other.gguf"
        data = bytearray(MODEL.read_bytes())
        data[-1] ^= 1  # a weight
        other.write_bytes(data)
        self.refused(["-m", other, "--prompt-cache", self.cache], "another model")


class Refused(PromptCacheTest):
    def test_files_that_are_none(self):
        for name, data, part in (("empty", b"", "empty"), ("text", b"hello", "no prompt cache"),
                                 ("cut", b"LDPROMPT", "is cut"),
                                 ("zeros", b"LDPROMPT" + bytes(200), "version 0")):
            path = self.folder / name
            path.write_bytes(data)
            self.refused(["-m", "x.gguf", "--prompt-cache", path], path, part)
        self.refused(["-m", "x.gguf", "--prompt-cache", self.folder], "is a directory")
        self.refused(["-m", "x.gguf", "--prompt-cache", self.folder / "no" / "x"],
                     "cannot be written")
        self.refused(["-m", "x.gguf", "--prompt-cache", "/dev/null"], "no regular file")


if __name__ == "__main__":
    unittest.main()
