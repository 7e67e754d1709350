#!/usr/bin/env python3
"""generate, tokenize and info on the real model."""
import json
import os
import pathlib
import re
import tempfile
import unittest

from support import HAS_MODEL, MODEL, NO_MODEL, QUICK, run

KEYS = {"text", "token_ids", "prompt_tokens", "prefill_tok_s", "decode_tok_s", "kept_fraction",
        "kv_bytes", "kv_bytes_read_per_token", "peak_rss_bytes", "method", "model", "num_generated",
        "stop_reason"}
STORY = "Once upon a time, in a small village by the sea, there lived a"


class Info(unittest.TestCase):
    def test_json(self):
        result = run("info", "--json", "-")
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        info = json.loads(result.stdout)
        self.assertLessEqual({"version", "build", "backends", "kernels", "support"}, info.keys())
        self.assertTrue(info["backends"][0]["available"])
        self.assertGreaterEqual(info["backends"][0]["num_threads"], 1)
        self.assertEqual({(row["op"], row["method"]) for row in info["support"]},
                         {("gqa", "dense"), ("gqa", "ffd"), ("mla", "dense"), ("mla", "ffd")})
        self.assertEqual(info["support"][0]["head_dims"], [64, 80, 96, 128, 256])

    def test_text(self):
        result = run("info")
        self.assertEqual(result.returncode, 0)
        self.assertIn(b"version: 0.", result.stdout)

    def test_json_file_appears_whole_through_a_link(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "old.json").write_text("old")
            (folder / "link.json").symlink_to("old.json")
            self.assertEqual(run("info", "--json", folder / "link.json").returncode, 0)
            self.assertIn("version", json.loads((folder / "old.json").read_text()))
            self.assertEqual(sorted(p.name for p in folder.iterdir()), ["link.json", "old.json"])

    def test_json_file_appears_where_links_lead(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "sub").mkdir()
            link, new, ring = folder / "link", folder / "sub" / "new", folder / "ring"
            (folder / "sub" / "inner").symlink_to("new")
            link.symlink_to("sub/inner")
            ring.symlink_to(ring)
            lost = folder / "lost"
            lost.symlink_to("none/new")
            failed = run("generate", "-m", folder / "none", "-p", "x", "--json", link)
            self.assertEqual((failed.returncode, new.exists()), (2, False))
            self.assertEqual(run("info", "--json", link).returncode, 0)
            self.assertIn("version", json.loads(new.read_text()))
            for path, reason in ((ring, b"Too many levels"), (lost, b"No such file"),
                                 (f"{folder}/other/", b"No such file")):
                refused = run("info", "--json", path)
                self.assertEqual(refused.returncode, 2)
                self.assertIn(b"cannot be written: " + reason, refused.stderr)
            self.assertEqual(sorted(p.name for p in folder.rglob("*") if not p.is_symlink()),
                             ["new", "sub"])
            self.assertEqual(sum(p.is_symlink() for p in folder.rglob("*")), 4)


class CommandTest(unittest.TestCase):
    def json_of(self, *args, env=None):
        result = run(*args, "--json", "-", env=env)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return json.loads(result.stdout)


class Info(CommandTest):
    def test_support(self):
        rows = {(row["op"], row["method"]): row for row in self.json_of("info")["support"]
                if row["device"] == "cpu"}
        for method, page_sizes in (("dense", [1, 16, 32, 64, 128]), ("ffd", [64, 128])):
            row = rows["gqa", method]
            self.assertEqual(row["head_dims"], [64, 80, 96, 128, 256])
            self.assertEqual(row["groups"], list(range(1, 17)))
            self.assertEqual(row["page_sizes"], page_sizes)
            self.assertEqual(row["query_lens"], list(range(1, 9)))
            self.assertEqual(row["dtypes"], ["f32", "f16", "bf16"])
            self.assertEqual(row["options"], ["soft_cap", "sliding_window", "learned_sinks"])
        self.assertEqual(rows["mla", "dense"]["groups"], list(range(1, 129)))
        self.assertFalse(rows["mla", "ffd"]["supported"])
        lines = [re.split(r" {2,}", line) for line in run("info").stdout.decode().splitlines()]
        self.assertIn(["device", "op", "method", "kernel", "head_dim", "group", "page_size",
                       "query_len", "dtype"], lines)
        table = {tuple(line[:3]): line[4:] for line in lines if len(line) == 9}
        self.assertEqual(table["cpu", "gqa", "ffd"],
                         ["64 80 96 128 256", "1-16", "64 128", "1-8", "f32 f16 bf16"])
        self.assertEqual(table["cpu", "mla", "dense"],
                         ["576", "1-128", "1 16 32 64 128", "1-8", "f32 f16 bf16"])


@unittest.skipUnless(HAS_MODEL, NO_MODEL)
class ModelFile(CommandTest):
    def test_info(self):
        model = self.json_of("info", "-m", MODEL)["model"]
        self.assertEqual((model["architecture"], model["num_layers"], model["num_q_heads"],
                          model["num_kv_heads"], model["context_len"], model["chat_template"]),
                         ("llama", 30, 9, 3, 8192, "chatml"))

    def test_tokenize(self):
        tokens = self.json_of("tokenize", "-m", MODEL, "-p", "hello <|im_end|> 123")
        self.assertEqual(tokens["token_ids"],
                         [28120, 2067, 108, 306, 79, 486, 108, 46, 216, 33, 34, 35])
        tokens = self.json_of("tokenize", "-m", MODEL, "-p", "hello <|im_end|> 123", "--special")
        self.assertEqual(tokens["token_ids"], [28120, 216, 2, 216, 33, 34, 35])
        lines = run("tokenize", "-m", MODEL, "-p", "hello\n").stdout.decode().splitlines()
        self.assertEqual(lines, ['  28120 "hello"', '    198 "\\n"'])


@unittest.skipUnless(HAS_MODEL, NO_MODEL)
@unittest.skipIf(QUICK, "LONGDECODE_TEST_QUICK is set")
class Generate(CommandTest):
    def generate(self, *args, env=None):
        return self.json_of("generate", "-m", MODEL, *args, env=env)

    def test_methods(self):
        dense = self.generate("-p", STORY, "-n", "8", "--temp", "0")
        self.assertLessEqual(KEYS, dense.keys())
        self.assertEqual((dense["num_generated"], len(dense["token_ids"])), (8, 8))
        self.assertEqual((dense["method"], dense["stop_reason"]), ("dense", "length"))
        self.assertEqual((dense["kept_fraction"], dense["context_len"]),
                         (1.0, dense["prompt_tokens"] + 8))
        self.assertGreater(dense["decode_tok_s"], 0)
        self.assertGreater(dense["peak_rss_bytes"], 1 << 20)
        again = self.generate("-p", STORY, "-n", "8", "--temp", "0", "-t", "2")
        self.assertEqual((dense["num_threads"], again["num_threads"]), (1, 2))
        self.assertEqual(dense["token_ids"], again["token_ids"])
        # Shorter than sink + recent tokens: FFD attends everything.
        ffd = self.generate("-p", STORY, "-n", "8", "--temp", "0", "--method", "ffd",
                            "--dense-layers", "0,1", "--layer-delta", "2=inf,3=7",
                            "--ffd-min-len", "0")
        self.assertEqual((ffd["method"], ffd["decode_method"], ffd["kept_fraction"]),
                         ("ffd", "ffd", 1.0))
        self.assertIn("ffd_decode", ffd["kernel"])
        self.assertEqual(ffd["token_ids"], dense["token_ids"])

    def test_short_sessions_are_dense(self):
        def with_ffd(*arguments):
            return self.generate("-p", STORY, "-n", "2", "--temp", "0", "--method", "ffd",
                                 *arguments)

        short = with_ffd()
        self.assertEqual((short["method"], short["decode_method"], short["ffd_min_len"]),
                         ("ffd", "dense", 4096))
        self.assertIn("gqa_decode", short["kernel"])
        room = str(short["context_len"])
        self.assertEqual(with_ffd("--ffd-min-len", room)["decode_method"], "ffd")
        self.assertEqual(with_ffd("-c", "4096")["decode_method"], "ffd")
        self.assertEqual(with_ffd("-c", "4095")["decode_method"], "dense")

    def test_sampling_follows_the_seed(self):
        def with_seed(seed):
            return self.generate("-p", STORY, "-n", "12", "-s", seed, "--temp", "1.5")

        first = with_seed(7)
        self.assertEqual(first["seed"], 7)
        self.assertEqual(first["token_ids"], with_seed(7)["token_ids"])
        self.assertNotEqual(first["token_ids"], with_seed(8)["token_ids"])

    def test_environment_twins_and_precedence(self):
        env = {"LONGDECODE_MODEL": str(MODEL), "LONGDECODE_N_PREDICT": "3",
               "LONGDECODE_METHOD": "ffd", "LONGDECODE_DENSE_LAYERS": "0,2"}
        result = self.json_of("generate", "-p", STORY, env=env)
        self.assertEqual((result["num_generated"], result["method"]), (3, "ffd"))
        result = self.json_of("generate", "-p", STORY, "-n", "2", "--method", "dense", env=env)
        self.assertEqual((result["num_generated"], result["method"]), (2, "dense"))

    def test_limits(self):
        none = self.generate("-p", STORY, "-n", "0")
        self.assertEqual((none["text"], none["token_ids"], none["decode_tok_s"]), ("", [], None))
        self.assertEqual(run("generate", "-m", MODEL, "-p", STORY, "-n", "0").stdout, b"")
        prompt = none["prompt_tokens"]
        capped = self.generate("-p", STORY, "-n", "50", "-c", prompt + 2, "--ignore-eos")
        self.assertEqual((capped["num_generated"], capped["stop_reason"]), (2, "context"))

    def test_chat_ends_with_the_turn(self):
        chat = self.generate("--chat", "-p", "What is the capital of France?", "-n", "60",
                             "--temp", "0")
        self.assertEqual(chat["stop_reason"], "eos")
        self.assertIn("Paris", chat["text"])
        self.assertNotIn("<|im_end|>", chat["text"])

    def test_several_prompts_give_what_each_gives_alone(self):
        prompts = [STORY, "The capital of France is", "1 2 3 4 5"]
        for temperature in ("0", "1.5"):
            flags = ("-n", "8", "--temp", temperature, "-c", "512")
            alone = [self.generate("-p", prompt, *flags, "-s", 40 + i)
                     for i, prompt in enumerate(prompts)]
            batch = self.generate(*(x for p in prompts for x in ("-p", p)), *flags, "-s", "40")
            self.assertEqual([(one["text"], one["token_ids"], one["prompt_tokens"],
                               one["num_generated"], one["stop_reason"]) for one in alone],
                             [(one["text"], one["token_ids"], one["prompt_tokens"],
                               one["num_generated"], one["stop_reason"])
                              for one in batch["prompts"]])
            self.assertEqual([one["prompt_idx"] for one in batch["prompts"]], [0, 1, 2])
        self.assertEqual([one["seed"] for one in batch["prompts"]], [40, 41, 42])
        self.assertEqual((batch["prompt_tokens"], batch["num_generated"], batch["parallel"]),
                         (sum(one["prompt_tokens"] for one in alone), 24, 1))
        self.assertGreater(batch["decode_tok_s"], 0)
        self.assertGreater(batch["total_tok_s"], 0)
        self.assertGreater(batch["timing"]["decode"]["sampling_s"], 0)

    def test_seeds_of_several_prompts_are_seeds_of_single_ones(self):
        flags = ("-n", "6", "--temp", "1.5", "-c", "64")
        batch = self.generate("-p", STORY, "-p", STORY, *flags, "-s", 2**32 - 1)["prompts"]
        self.assertEqual([one["seed"] for one in batch], [2**32 - 1, 0])
        for one in batch:
            alone = self.generate("-p", STORY, *flags, "-s", one["seed"])
            self.assertEqual(alone["token_ids"], one["token_ids"])

    def test_several_prompts_end_each_on_its_own(self):
        with tempfile.TemporaryDirectory() as name:
            paths = [os.path.join(name, file) for file in ("a.txt", "b.txt")]
            for path, text in zip(paths, ("What is the capital of France?", "Tell me a story.")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            out = os.path.join(name, "out.json")
            result = run("generate", "-m", MODEL, "-f", paths[0], "-f", paths[1], "--chat", "-n",
                         "40", "-c", "60", "--temp", "0", "--progress", "--json", out)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(out, encoding="utf-8") as file:
                prompts = json.load(file)["prompts"]
        self.assertEqual([one["stop_reason"] for one in prompts], ["eos", "context"])
        self.assertEqual([one["file"] for one in prompts], paths)
        self.assertIn("Paris", prompts[0]["text"])
        self.assertEqual(result.stdout.decode(), "\n".join(
            f"--- prompt {i} ({path}) ---\n{one['text']}\n"
            for i, (path, one) in enumerate(zip(paths, prompts))))
        error = result.stderr.decode()
        for part in ("prefill of prompt 1", "2 prompts, one after the other",
                     f"note: the text of prompt 1 (-f {paths[1]}) ends early"):
            self.assertIn(part, error)

    def test_full_stdout_ends_several_prompts_at_once(self):
        with open("/dev/full", "wb") as full:
            result = run("generate", "-m", MODEL, "-p", "a", "-p", "b", "-n", "2000", stdout=full)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"cannot write stdout", result.stderr)

    def test_text_is_streamed_beside_a_json_file(self):
        with tempfile.TemporaryDirectory() as name:
            path = os.path.join(name, "out.json")
            result = run("generate", "-m", MODEL, "-p", STORY, "-n", "5", "-s", "1", "--progress",
                         "--delta", "3", "--json", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path, encoding="utf-8") as file:
                text = json.load(file)["text"]
            self.assertEqual(result.stdout.decode(), text + "\n")
            error = result.stderr.decode()
            for part in ("(100%)", "kept_fraction", "--delta has no effect with --method dense"):
                self.assertIn(part, error)

    def test_full_stdout_leaves_no_json(self):
        with tempfile.TemporaryDirectory() as name, open("/dev/full", "wb") as full:
            result = run("generate", "-m", MODEL, "-p", STORY, "-n", "5", "--json",
                         os.path.join(name, "out.json"), stdout=full)
            self.assertEqual(result.returncode, 1)
            self.assertIn(b"cannot write stdout", result.stderr)
            self.assertEqual(os.listdir(name), [])


if __name__ == "__main__":
    unittest.main()
