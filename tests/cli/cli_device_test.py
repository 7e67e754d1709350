#!/usr/bin/env python3
"""--device, --graph and --random-weights where there is no GPU. What needs one is in tests/gpu."""
import json
import os
import pathlib
import tempfile
import unittest

from support import HAS_MODEL, MODEL, NO_MODEL, run


def cuda():
    backends = json.loads(run("info", "--json", "-").stdout)["backends"]
    return next(backend for backend in backends if backend["name"] == "cuda")


CUDA = cuda()
IS_BUILT = "this build has" not in CUDA.get("reason", "")
NO_GPU = "there is a CUDA device"
FAKE_DRIVER = os.environ.get("LONGDECODE_FAKE_DRIVER", "")


class Device(unittest.TestCase):
    def assert_refused(self, status, flags, *parts, env=None):
        result = run(*flags, env=env)
        error = result.stderr.decode()
        with self.subTest(flags=flags):
            self.assertEqual((result.returncode, result.stdout), (status, b""), error)
            self.assertEqual(len(error.splitlines()), 1, error)
            for part in parts:
                self.assertIn(part, error)

    @unittest.skipIf(CUDA["available"], NO_GPU)
    @unittest.skipUnless(HAS_MODEL, NO_MODEL)
    def test_cuda_without_a_gpu(self):
        text = pathlib.Path(tempfile.mkdtemp()) / "text"
        text.write_text("one two three four five six seven eight")
        reason = CUDA["reason"]
        for flags in (["generate", "-m", MODEL, "-p", "a", "-n", "1"],
                      ["generate", "-m", MODEL, "-p", "a", "-n", "1", "--delta", "3"],
                      ["generate", "-m", MODEL, "-p", "a", "-n", "1", "--method", "ffd"],
                      ["perplexity", "-m", MODEL, "-f", text, "--delta", "3"],
                      ["bench", "model", "-m", MODEL, "-n", "1", "-p", "0"],
                      ["bench", "attention", "--op", "mla"]):
            self.assert_refused(1, [*flags, "--device", "cuda"], reason)  # alone, without a note

    @unittest.skipUnless(HAS_MODEL, NO_MODEL)
    def test_flags_of_cuda_are_noted_on_the_cpu(self):
        graph, parallel = (f"longdecode: note: {flag} has no effect on the CPU"
                           for flag in ("--graph", "--parallel"))
        prompts = ["generate", "-p", "a", "-p", "b", "-n", "1"]
        for flags, expected in ((prompts, []), ([*prompts, "--parallel", "2"], [parallel]),
                                ([*prompts, "--graph", "off", "--parallel", "2"], [graph, parallel]),
                                (["generate", "-i", "--graph", "off"], [graph]),
                                (["bench", "model", "-n", "1", "-p", "0", "-r", "1", "--graph", "off"],
                                 [graph])):
            result = run(*flags, "-m", MODEL)
            self.assertEqual(result.returncode, 0, result.stderr)
            notes = [line for line in result.stderr.decode().splitlines() if "note:" in line]
            self.assertEqual(notes, expected)

    @unittest.skipIf(CUDA["available"], NO_GPU)
    @unittest.skipUnless(HAS_MODEL, NO_MODEL)
    def test_auto_says_why_it_runs_on_the_cpu(self):
        expected = [f"longdecode: note: on the CPU, because {CUDA['reason']}"] if IS_BUILT else []
        for command, num_rows in ((["generate", "-p", "a", "-n", "2", "--temp", "0"], 1),
                                  (["bench", "model", "-n", "1", "-p", "0", "-r", "1"], 2)):
            result = run(*command, "-m", MODEL, "--json", "-", env={"LONGDECODE_DEVICE": "auto"})
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(result.stdout)
            rows = report if isinstance(report, list) else [report]
            self.assertEqual([(row["device"], row["kv_type"]) for row in rows],
                             [("cpu", "f16")] * num_rows)
            notes = [line for line in result.stderr.decode().splitlines() if "note:" in line]
            self.assertEqual(notes, expected)

    @unittest.skipUnless(FAKE_DRIVER, "no fake driver (LONGDECODE_FAKE_DRIVER)")
    def test_drivers_that_do_not_serve(self):
        for answers, part in [
                ({"FAKE_DRIVER_VERSION": "11040"}, "the NVIDIA driver is for CUDA 11.4; this build "
                 "needs one for "),
                ({"FAKE_DRIVER_INIT": "100"}, "cudaErrorNoDevice (no CUDA-capable device"),
                ({"FAKE_DRIVER_INIT": "802"}, "cudaErrorSystemNotReady"),
                ({"FAKE_DRIVER_INIT": "803"}, "cudaErrorSystemDriverMismatch"),
                ({"FAKE_DRIVER_INIT": "999"}, "cudaErrorUnknown")]:
            env = {"LD_LIBRARY_PATH": FAKE_DRIVER} | answers
            info = json.loads(run("info", "--json", "-", env=env).stdout)
            reason = next(b["reason"] for b in info["backends"] if b["name"] == "cuda")
            self.assertTrue(reason.startswith("no CUDA device: "), reason)
            self.assertIn(part, reason)
            if not HAS_MODEL:
                continue
            flags = ["generate", "-m", MODEL, "-p", "a", "-p", "b", "-n", "1"]
            self.assert_refused(1, [*flags, "--device", "cuda"], f'error: --device is "cuda": {reason}', env=env)
            result = run(*flags, env=env | {"LONGDECODE_DEVICE": "auto"})
            self.assertEqual(result.returncode, 0)
            self.assertIn(f"longdecode: note: on the CPU, because {reason}\n",
                          result.stderr.decode())

    def test_bad_flags(self):
        self.assert_refused(2, ["generate", "-m", "x", "-p", "a", "--device", "gpu"],
                            'gpu', "auto, cpu, cuda")
        self.assert_refused(2, ["generate", "-m", "x", "-p", "a", "--device", "cuda"],
                            '--kv-type is "f16"', "auto, bf16", "LONGDECODE_KV_TYPE",
                            env={"LONGDECODE_KV_TYPE": "f16"})
        self.assert_refused(2, ["generate", "-m", "x", "-p", "a", "--graph", "magic"],
                            "magic", "any-length, block, off")
        self.assert_refused(2, ["perplexity", "-m", "x", "-f", "y", "--graph", "off,block"],
                            "--graph is off,block")
        self.assert_refused(2, ["bench", "model", "-m", MODEL, "--batch", "2"],
                            "--batch is 2; allowed: 1 (more with --random-weights alone)")
        self.assert_refused(2, ["bench", "model"], "-m")

    @unittest.skipUnless(IS_BUILT, "no CUDA backend in this build")
    def test_bad_flags_of_random_weights(self):
        bench = ["bench", "model", "--random-weights"]
        self.assert_refused(2, [*bench, "gpt-2"], "gpt-2", "llama-3.1-8b, qwen2.5-7b")
        llama = [*bench, "llama-3.1-8b"]
        auto = {"LONGDECODE_DEVICE": "auto"}
        self.assert_refused(2, [*llama, "-m", "x"], "-m and --random-weights exclude each other",
                            env=auto)
        self.assert_refused(2, [*bench, ""], '--random-weights is ""', "llama-3.1-8b", env=auto)
        self.assert_refused(2, [*llama, "--batch", "9"], "--batch is 9", "1 to 8", env=auto)
        self.assert_refused(2, [*llama, "--kv-type", "f16"], "--kv-type", "auto, bf16", env=auto)
        self.assert_refused(2, [*llama, "--device", "cpu"], "--random-weights", "auto, cuda")
        self.assert_refused(2, [*llama, "-n", "0"], "-n is 0", env=auto)
        if not CUDA["available"]:
            cuda_and_model = {"LONGDECODE_DEVICE": "cuda", "LONGDECODE_MODEL": "x"}
            self.assert_refused(1, llama, CUDA["reason"], env=cuda_and_model)
            self.assert_refused(1, [*llama, "-p", "5"], CUDA["reason"], env=auto)

    @unittest.skipIf(IS_BUILT, "this build has the CUDA backend")
    def test_random_weights_without_the_backend(self):
        self.assert_refused(1, ["bench", "model", "--random-weights", "llama-3.1-8b"],
                            "no CUDA backend")


if __name__ == "__main__":
    unittest.main()
