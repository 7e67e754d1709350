#!/usr/bin/env python3
"""bench model on the real model: rows, not speeds."""
import json
import unittest

from support import HAS_MODEL, MODEL, NO_MODEL, QUICK, ROOT, run

KEYS = {"model", "device", "method", "batch", "depth", "test", "tok_s", "tok_s_stdev",
        "kept_fraction", "kv_bytes_read_per_token", "num_threads", "commit"}
BENCH = ("bench", "model", "-m", MODEL)


@unittest.skipUnless(HAS_MODEL, NO_MODEL)
class BenchModel(unittest.TestCase):
    @unittest.skipIf(QUICK, "LONGDECODE_TEST_QUICK is set")
    def test_rows(self):
        result = run(*BENCH, "-p", "8", "-n", "4", "-d", "400,0", "-r", "2", "--sink-tokens", "16",
                     "--recent-tokens", "16", "--delta", "1", "--progress", "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        self.assertIn(b"dense: context of 400 400/400 tokens (100%)", result.stderr)
        rows = json.loads(result.stdout)
        tests = [f"{test} @ d{depth}" for depth in (0, 400) for test in ("pp8", "tg4")]
        self.assertEqual([(row["method"], row["test"]) for row in rows],
                         [(method, test) for method in ("dense", "ffd") for test in tests])
        for row in rows:
            self.assertLessEqual(KEYS, row.keys())
            self.assertEqual((row["device"], row["batch"], row["num_threads"]), ("cpu", 1, 1))
            self.assertEqual(len(row["samples_tok_s"]), 2)
            self.assertGreater(row["tok_s"], 0)
            self.assertEqual(row["kept_fraction"] is None, row["test"].startswith("pp"))
        dense, ffd = rows[3], rows[7]
        # 30 layers x 3 heads x (K and V) x 64 x 2 bytes a token, over 401 to 404 tokens.
        self.assertEqual((dense["depth"], dense["kept_fraction"]), (400, 1.0))
        self.assertEqual(dense["kv_bytes_read_per_token"], 30 * 3 * 2 * 64 * 2 * 402.5)
        self.assertGreater(ffd["kept_fraction"], 0.05)
        self.assertLess(ffd["kept_fraction"], 0.95)

    @unittest.skipIf(QUICK, "LONGDECODE_TEST_QUICK is set")
    def test_table_of_a_text(self):
        result = run(*BENCH, "-p", "0", "-n", "1", "-d", "30", "-r", "1", "--method", "dense",
                     "-f", ROOT / "README.md")
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        lines = [line.split() for line in result.stdout.decode().splitlines()]
        self.assertEqual(lines[1][:4], ["method", "device", "test", "tok/s"])
        self.assertEqual([line[:5] for line in lines[2:]], [["dense", "cpu", "tg1", "@", "d30"]])

    def test_bad_input(self):
        for flags, *parts in [
                (["-p", "-1"], "-p is -1"), (["-p", "0", "-n", "0"], "-p and -n are 0"),
                (["-r", "0"], "-r is 0"), (["-d", "0,-2"], "-d is -2"),
                (["--method", "dense,magic"], "magic"), (["-d", "8000"], "8512", "8192"),
                (["--layer-delta", "0"], "--layer-delta"), (["-f", ROOT], "is a directory"),
                (["-f", ROOT / "LICENSE", "-d", "7000"], "LICENSE", "7512 or more"),
                (["--layer-delta", "30=1"], "0 to 29")]:
            result = run(*BENCH, *flags)
            error = result.stderr.decode()
            with self.subTest(flags=flags):
                self.assertEqual((result.returncode, result.stdout), (2, b""), error)
                self.assertEqual(len(error.splitlines()), 1)
                for part in parts:
                    self.assertIn(part, error)


if __name__ == "__main__":
    unittest.main()
