#!/usr/bin/env python3
"""The commands that run a model over a text: perplexity, dump-qkv, study-format."""
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

from support import BINARY, HAS_MODEL, MODEL, NO_MODEL, QUICK, ROOT, run

TEXT = ROOT / "LICENSE"
PERPLEXITY_KEYS = {"perplexity", "scored_tokens", "kept_fraction", "decode_tok_s",
                   "kv_bytes_read_per_token", "method", "model", "context_len"}


class TextTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def json_of(self, *args):
        result = run(*args, "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return json.loads(result.stdout)

    def refused(self, args, *parts):
        before = sorted(self.folder.iterdir())
        result = run(*args)
        error = result.stderr.decode()
        with self.subTest(args=[str(arg) for arg in args]):
            self.assertEqual((result.returncode, result.stdout), (2, b""), error)
            self.assertEqual(len(error.splitlines()), 1, error)
            for part in parts:
                self.assertIn(str(part), error)
            self.assertEqual(sorted(self.folder.iterdir()), before)


class Demo(TextTest):
    def test_documents_without_text_are_named(self):
        for name, data in (("empty.txt", b""), ("blank.txt", b" \n\n"), ("none.txt", None)):
            path = self.folder / name
            if data is not None:
                path.write_bytes(data)
            result = subprocess.run(
                [sys.executable, ROOT / "scripts" / "run_demo.py", "--binary", BINARY, "--model",
                 TEXT, "--document", path], stderr=subprocess.PIPE, check=False, timeout=60)
            self.assertEqual(result.returncode, 1)
            error = result.stderr.decode()
            self.assertEqual(len(error.splitlines()), 1, error)
            self.assertIn(str(path), error)


class BadInput(TextTest):
    def test_flags(self):
        common = ["perplexity", "-m", "none.gguf", "-f", TEXT]
        self.refused(["perplexity", "-f", TEXT], "-m FILE")
        self.refused(["perplexity", "-m", "none.gguf"], "-f FILE")
        self.refused(common, "none.gguf")
        for flags, *parts in ((["-c", "3"], "-c is 3", "4"), (["-c", "-1"], "-c is -1"),
                              (["--method", "magic"], "dense, ffd"), (["-t", "0"], "-t is 0"),
                              (["--delta", "-1"], "--delta is -1"),
                              (["--json", self.folder], "directory")):
            self.refused([*common, *flags], *parts)

    def test_dump_flags(self):
        out = self.folder / "x.safetensors"
        common = ["dump-qkv", "-m", "none.gguf", "-f", TEXT, "-o", out]
        self.refused(["dump-qkv", "-m", "none.gguf", "-f", TEXT], "-o FILE")
        self.refused(["dump-qkv", "-m", "none.gguf", "-o", out], "-f FILE")
        self.refused(common, "none.gguf")
        self.refused([*common, "--dtype", "int8"], "f32, f16")
        self.refused([*common, "--layers", "0,x"], "--layers")
        self.refused([*common, "-c", "-1"], "-c is -1")

    def test_study_flags(self):
        common = ["study-format", "-m", "none.gguf", "-f", TEXT]
        self.refused(["study-format", "-m", "none.gguf"], "-f FILE")
        self.refused(["study-format", "-f", TEXT], "-m FILE")
        self.refused(common, "none.gguf")
        for flags, *parts in ((["-c", "1000"], "-c is 1000", "1024"),
                              (["--positions", "0"], "--positions is 0", "3072"),
                              (["-s", "-1"], "--seed is -1"), (["-t", "0"], "-t is 0"),
                              (["--json", self.folder], "directory")):
            self.refused([*common, *flags], *parts)

    @unittest.skipUnless(HAS_MODEL, NO_MODEL)
    def test_dumps(self):
        common = ["dump-qkv", "-m", MODEL, "-f", TEXT, "-o"]
        self.refused([*common, self.folder], "-o", "is a directory")
        self.refused([*common, self.folder / "no" / "x"], "cannot be written")
        self.refused([*common, self.folder / "x", "--layers", "0,30"], "--layers has 30", "0 to 29")
        self.refused([*common, self.folder / "x", "--layers", "2,2"], "--layers has 2 twice")
        self.refused([*common, self.folder / "x", "-c", "6144"], "2215 tokens", "6144")

    @unittest.skipUnless(HAS_MODEL, NO_MODEL)
    def test_texts(self):
        def perplexity(path, *flags):
            return ["perplexity", "-m", MODEL, "-f", path, *flags]

        def write(name, data):
            (self.folder / name).write_bytes(data)
            return self.folder / name

        self.refused(perplexity(TEXT, "-c", "6144"), "2215 tokens", "6144")
        self.refused(perplexity(TEXT, "-c", "8193"), "8193", "8192")
        self.refused(perplexity(write("short.txt", b"a b")), "2 tokens", "4")
        self.refused(perplexity(write("empty.txt", b"")), "empty")
        self.refused(perplexity(write("text.gz", b"\x1f\x8b\x08\x00")), "not UTF-8")
        self.refused(perplexity(self.folder / "none.txt"), "none.txt")
        self.refused(perplexity(TEXT, "-c", "64", "--method", "ffd", "--dense-layers", "30"),
                     "--dense-layers has 30", "0 to 29")


@unittest.skipUnless(HAS_MODEL, NO_MODEL)
@unittest.skipIf(QUICK, "LONGDECODE_TEST_QUICK is set")
class Perplexity(TextTest):
    def perplexity(self, *flags, text=TEXT):
        return self.json_of("perplexity", "-m", MODEL, "-f", text, *flags)

    def test_methods_agree(self):
        dense = self.perplexity("-c", "65")
        self.assertLessEqual(PERPLEXITY_KEYS, dense.keys())
        self.assertEqual((dense["scored_tokens"], dense["context_len"], dense["method"],
                          dense["kept_fraction"]), (33, 65, "dense", 1.0))
        self.assertAlmostEqual(math.exp(dense["neg_log_likelihood"] / 33), dense["perplexity"], 6)
        self.assertGreater(dense["perplexity"], 1.0)
        self.assertLess(dense["perplexity"], 50.0)  # chance is 49152
        # Shorter than sink + recent tokens: FFD attends everything.
        ffd = self.perplexity("-c", "65", "--method", "ffd")
        self.assertEqual((ffd["kept_fraction"], ffd["delta"]), (1.0, 5.0))
        self.assertAlmostEqual(ffd["perplexity"] / dense["perplexity"], 1.0, 2)

    def test_text_that_can_be_foreseen(self):
        text = self.folder / "repeated.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
        result = self.perplexity(text=text)
        self.assertEqual(result["scored_tokens"],
                         result["context_len"] - result["context_len"] // 2)
        self.assertLess(result["perplexity"], 1.5)

    def test_table_and_progress(self):
        result = run("perplexity", "-m", MODEL, "-f", TEXT, "-c", "40", "--progress", "--delta", "3")
        self.assertEqual(result.returncode, 0)
        self.assertIn(b"over 20 tokens, dense", result.stdout)
        for part in (b"prefill 19/19", b"decode 20/20", b"--delta has no effect"):
            self.assertIn(part, result.stderr)


@unittest.skipUnless(HAS_MODEL, NO_MODEL)
@unittest.skipIf(QUICK, "LONGDECODE_TEST_QUICK is set")
class DumpQkv(TextTest):
    def dump(self, *flags):
        path = self.folder / "x.safetensors"
        result = run("dump-qkv", "-m", MODEL, "-f", TEXT, "-o", path, *flags)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        self.assertEqual(list(self.folder.iterdir()), [path])
        return self.load(path)

    def load(self, path):
        data = path.read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__")
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            letter = {"F32": "f", "F16": "e"}[entry["dtype"]]
            raw = data[8 + size + begin:8 + size + end]
            count = math.prod(entry["shape"])
            tensors[name] = (entry["shape"], struct.unpack(f"<{count}{letter}", raw))
        return tensors

    def test_equals_the_kept_dump(self):
        kept = self.load(ROOT / "tests" / "data" / "smollm2_qkv.safetensors")
        # More than a prefill chunk, which the file is put together from.
        tensors = self.dump("-c", "520", "--layers", "17,0")
        self.assertEqual(list(tensors), [f"layers.{n}.{x}" for n in (17, 0) for x in "qkv"])
        for name, (shape, values) in tensors.items():
            self.assertEqual(shape, [520, 9 if name.endswith("q") else 3, 64])
            expected = kept[name][1][:len(values)]
            error = sum((a - b) ** 2 for a, b in zip(values, expected))
            self.assertLess(math.sqrt(error / sum(b * b for b in expected)), 0.02, name)

    def test_halves_of_all_layers(self):
        floats = self.dump("-c", "9")
        halves = self.dump("-c", "9", "--dtype", "f16")
        self.assertEqual(len(floats), 90)
        self.assertEqual(list(floats), list(halves))
        for name, (_, values) in floats.items():
            for value, half in zip(values, halves[name][1]):
                self.assertEqual(struct.unpack("<e", struct.pack("<e", value))[0], half)


@unittest.skipUnless(HAS_MODEL, NO_MODEL)
@unittest.skipIf(QUICK, "LONGDECODE_TEST_QUICK is set")
class StudyFormat(TextTest):
    def test_tables(self):
        path = self.folder / "study.json"
        result = run("study-format", "-m", MODEL, "-f", TEXT, "-c", "1024", "--positions", "1",
                     "--progress", "--json", path)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        self.assertIn(b"range, midrange (product)", result.stdout)
        self.assertIn(b"study of kv heads 90/90", result.stderr)
        study = json.loads(path.read_text())
        self.assertEqual((study["context_len"], study["num_positions"]), (1024, 1))
        for table in ("scores", "selections", "pseudo_max", "layer_scores", "layer_selections",
                      "layer_pseudo_max"):
            columns, rows = study[table]["columns"], study[table]["rows"]
            self.assertTrue(rows, table)
            self.assertEqual({len(row) for row in rows}, {len(columns)}, table)
        def rows_of(table):
            return [dict(zip(study[table]["columns"], row)) for row in study[table]["rows"]]
        self.assertEqual({row["source"] for row in rows_of("selections")},
                         {"LICENSE", "texts", "synthetic gaussian", "synthetic K bias",
                          "synthetic outlier channels"})
        self.assertEqual({row["layers"] for row in rows_of("layer_scores")},
                         {str(layer) for layer in range(30)})
        for row in rows_of("selections"):
            self.assertGreater(row["kept_fraction"], 0.2)  # sink and recent tokens
            self.assertLessEqual(row["kept_fraction"], 1.0)
            self.assertLess(row["dropped_mass"], 1.0)


if __name__ == "__main__":
    unittest.main()
