#!/usr/bin/env python3
"""What `bench attention` is given, on the command line and in files, and what it says of it."""
import json
import struct
import time
import unittest

from support import HAS_MODEL, MODEL, NO_MODEL, Refusals, run

SMALL = ["--device", "cpu", "--method", "dense", "--kv-len", "128", "--kept", "1", "--reps", "1",
         "--flush-bytes", "0"]


class BenchInput(Refusals):
    def shapes(self, text):
        return ["bench", "attention", *SMALL, "--shapes", self.write("shapes.json", text.encode())]

    def safetensors(self, header, data=b""):
        return self.write("dump", struct.pack("<Q", len(header)) + header + data)

    def test_deep_json(self):
        for levels in (65, 100000, 1000000):
            for text in ("[" * levels, "[" * levels + "]" * levels, '{"a":' * levels,
                         "[" + '{"a":[' * levels + "1" + "]}" * levels + "]"):
                self.refused(self.shapes(text), "shapes.json: is nested deeper than 64 levels")
        header = b'{"a":' * 1000000 + b"1" + b"}" * 1000000
        self.refused(["bench", "attention", "--workload", "dump", "--dump", self.safetensors(header)],
                     "--dump", "has a header that is nested deeper than 64 levels")
        self.refused(self.shapes('[{"op": ' + "[" * 60 + "]" * 60 + "}]"), '"op" is [[[')

    def test_keys_given_twice(self):
        self.refused(self.shapes('[{"delta": 1, "delta": 2}]'), 'has the key "delta" twice')
        self.refused(self.shapes('[{"op": {"a": 1, "b": 2, "a": 3}}]'), 'has the key "a" twice')
        self.refused(["bench", "attention", "--workload", "dump", "--dump",
                      self.safetensors(b'{"a": 1, "a": 2}')], 'has the key "a" twice')
        self.refused(self.shapes('[{"op": "x"}, {"op": "gqa"}]'), 'shape 0: --op is "x"')

    def test_no_json(self):
        self.refused(self.shapes("[{"), "shapes.json: is not JSON: parse error at line 1, column 3")
        self.refused(self.shapes('[{"delta": 1e9999}]'), "is not JSON: number overflow parsing '1e9999'")
        self.refused(self.shapes('["' + "x" * 5000), "is not JSON: parse error", "...")
        self.refused(self.shapes(b"[\xff]".decode("latin1")), "is not JSON")

    def test_a_dump_that_no_shape_takes(self):
        self.refused(self.shapes('[{"op": "gqa"}]') + ["--dump", "x"],
                     "--workload is planted; allowed with --dump x: dump")

    def test_numbers_of_shapes(self):
        for key, value in (("delta", "1e+300"), ("delta", "-1e+300"), ("delta", "1e-300"),
                           ("delta", "1e+400"), ("near_threshold", "1e-400"),
                           ("margin_sigmas", "[0.5, 1e+39]"), ("batch", "2147483648"),
                           ("kv_len", "1.5"), ("certified", "1"), ("delta", '"1"')):
            self.refused(self.shapes(f'[{{"{key}": {value}}}]'), f'shape 0: "{key}" is {value.replace(" ", "")}: ',
                         "of the wrong kind or out of range")
        self.refused(self.shapes('[{"delta": -1}]'), "shape 0: --delta is -1; it must be >= 0")
        self.refused(self.shapes('[{"dump": "x"}]'), "shape 0: --workload is planted", "dump")

    def test_long_values_are_cut(self):
        long = "x" * 5000
        for args in (["bench", "attention", "--op", long], ["bench", "attention", "--reps", long],
                     ["bench", "attention", f"--{long}"], ["bench", "attention", long], [long],
                     ["bench", "attention", "--kept", long], ["bench", "attention", "--flush-bytes", long],
                     self.shapes(f'[{{"op": ["{long}", 1]}}]'), self.shapes(f'[{{"{long}": 1}}]')):
            self.refused(args, "...")
            self.assertLess(len(run(*args).stderr), 400)

    def test_errors_name_the_flag(self):
        for flag, value in (("--reps", "0"), ("--kept", "2"), ("--near-threshold", "2"),
                            ("--batch", "0"), ("--query-len", "9"), ("--num-kv-heads", "0"),
                            ("--page-size", "0"), ("--sink-tokens", "-1"), ("--head-dim", "0"),
                            ("--recent-tokens", "-1"), ("--kv-len", "0")):
            self.refused(["bench", "attention", "--device", "cpu", "--method", "dense", flag, value],
                         f"{flag} is {value}" if flag != "--recent-tokens" else f"{flag} {value}")
        for value in ("", "magic"):
            self.refused(["bench", "attention", "--device", "cpu", "--timing", value],
                         f'--timing is "{value}"; allowed on this device: auto, wall')

    def test_sizes_beyond_any_memory(self):
        bench = ["bench", "attention", "--device", "cpu", "--method", "dense"]
        self.refused([*bench, "--flush-bytes", "9223372036854775807"], "MiB of memory", "available")
        self.refused([*bench, "--batch", "1048576", "--kv-len", "2147483647", "--num-kv-heads", "1024",
                      "--num-q-heads", "1024"], "--batch 1048576 x --kv-len 2147483647", "memory")

    def test_dumps_of_both_types(self):
        shape, count = [256, 1, 64], 256 * 64
        for kind, code, size in (("F16", "e", 2), ("F32", "f", 4)):
            header = {f"layers.0.{name}": {"dtype": kind, "shape": shape, "data_offsets":
                                           [i * count * size, (i + 1) * count * size]}
                      for i, name in enumerate("qkv")}
            values = struct.pack(f"<{3 * count}{code}", *((i % 37 - 18) / 8 for i in range(3 * count)))
            path = self.safetensors(json.dumps(header).encode(), values)
            result = run("bench", "attention", *SMALL, "--workload", "dump", "--dump", path, "--json", "-")
            with self.subTest(kind=kind):
                self.assertEqual(result.returncode, 0, result.stderr)
        header = b'{"layers.0.q": {"dtype": "BF16"}}'
        self.refused(["bench", "attention", "--workload", "dump", "--dump", self.safetensors(header)],
                     "is not an F16 or F32 tensor")


class Devices(Refusals):
    def test_cuda_without_a_gpu(self):
        if any(backend["name"] == "cuda" and backend["available"]
               for backend in json.loads(run("info", "--json", "-").stdout)["backends"]):
            self.skipTest("there is a GPU")
        self.refused(["generate", "-m", "x", "-p", "x", "--device", "cuda"], '--device is "cuda": no CUDA',
                     code=1)
        self.refused(["generate", "-m", "x", "-p", "x"], '--device is "cuda": no CUDA',
                     "(set by LONGDECODE_DEVICE)", env={"LONGDECODE_DEVICE": "cuda"}, code=1)
        self.refused(["bench", "attention", "--device", "cuda"], '--device is "cuda": no CUDA', code=1)
        result = run("bench", "model", "--random-weights", "smollm2-135m",
                     env={"LONGDECODE_DEVICE": "auto"})
        self.assertIn(b"error: --random-weights runs on CUDA", result.stderr)
        reason = [backend["reason"] for backend in
                  json.loads(run("info", "--json", "-").stdout)["backends"] if not backend["available"]]
        result = run("bench", "attention", *SMALL[2:])
        self.assertEqual(result.returncode, 0, result.stderr)
        if "this build" not in reason[0]:
            self.assertIn(f"note: on the CPU, because {reason[0]}", result.stderr.decode())


class Texts(Refusals):
    def test_help_says_what_is_checked(self):
        for command, text in (("study-format", b"1024 or more, at most"),
                              ("perplexity", b"4 or more; 0: all"), ("dump-qkv", b"0: all")):
            self.assertIn(text, run(command, "--help").stdout)
        self.refused(["study-format", "-m", "x", "-f", "x", "-c", "0"], "-c is 0", "within 1024")
        self.refused(["perplexity", "-m", "x", "-f", "x", "-c", "3"], "-c is 3; allowed: 0 (all) or 4 to")

    @unittest.skipUnless(HAS_MODEL, NO_MODEL)
    def test_all_texts_are_read_before_the_work(self):
        text = self.write("text", b"one two three four " * 1000)
        out = self.folder / "out.json"
        started = time.monotonic()
        self.refused(["study-format", "-m", MODEL, "-f", text, "-f", "none.txt", "-c", "2048", "--json",
                      out], "-f none.txt: No such file")
        self.assertLess(time.monotonic() - started, 5.0)

    def test_prompt_files_and_caches_are_named(self):
        generate = ["generate", "-m", "x.gguf"]
        self.refused([*generate, "-f", "none.txt"], "-f none.txt: No such file")
        self.refused([*generate, "-f", self.folder], f"-f {self.folder} is a directory")
        self.refused([*generate, "-f", "/dev/zero"], "-f /dev/zero is larger than")
        empty = self.write("empty", b"")
        damaged = self.write("damaged", b"LDPROMPT" + bytes(500))
        for path in (empty, damaged):
            link = self.folder / "link"
            link.symlink_to(path)
            self.refused([*generate, "-p", "x", "--prompt-cache", link], "--prompt-cache: ", link)
            link.unlink()


if __name__ == "__main__":
    unittest.main()
