#!/usr/bin/env python3
"""generate -i on the real model, stdin being a pipe."""
import json
import os
import re
import signal
import subprocess
import unittest

from support import BINARY, HAS_MODEL, MODEL, NO_MODEL, QUICK, environment, run

CHAT = ("generate", "-m", MODEL, "-i", "--temp", "0", "--verbose")
TURN = re.compile(r"prefill (\d+) tokens .*answer (\d+) tokens .*context (\d+)/(\d+)")


SYSTEM = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
          "<|im_end|>\n")
USER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def num_tokens(text):
    result = run("tokenize", "-m", MODEL, "-p", text, "--special", "--json", "-")
    return json.loads(result.stdout)["num_tokens"]


def chat(lines, *args):
    return run(*CHAT, *args, input="".join(f"{line}\n" for line in lines).encode())


def turns(result):
    return [tuple(map(int, turn)) for turn in TURN.findall(result.stderr.decode())]


@unittest.skipUnless(HAS_MODEL, NO_MODEL)
@unittest.skipIf(QUICK, "LONGDECODE_TEST_QUICK is set")
class Chat(unittest.TestCase):
    def test_a_turn_prefills_what_is_new(self):
        for method in ("dense", "ffd"):
            result = chat(["What is the capital of France?", "", "And of Italy?"], "-n", "24",
                          "--method", method)
            self.assertEqual(result.returncode, 0, result.stderr)
            answers = result.stdout.decode().split("\n\n")
            self.assertIn("Paris", answers[0])
            first, second = turns(result)
            question = USER.format("What is the capital of France?")
            self.assertEqual(first[0], num_tokens(SYSTEM + question))
            self.assertEqual(first[3], 8192)
            not_fed = first[0] + first[1] - first[2]
            self.assertIn(not_fed, (0, 1))
            turn = num_tokens("<|im_end|>\n" + USER.format("And of Italy?"))
            self.assertEqual(second[0], not_fed + turn)
            self.assertIn(first[2] + second[0] + second[1] - second[2], (0, 1))

    def test_a_first_message_from_the_command_line(self):
        result = chat([], "-p", "Say hi.", "-n", "3", "--ignore-eos")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([turn[1] for turn in turns(result)], [3])
        self.assertIn(b"cut after -n 3 tokens", result.stderr)

    def test_full_context(self):
        result = chat(["One two three", "Four", "Five"], "-c", "48", "-n", "40", "--ignore-eos")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(turns(result)), 1)
        error = result.stderr.decode()
        self.assertIn("the context of 48 tokens is full: the answer is cut", error)
        self.assertEqual(error.count("the context is full: the message needs"), 2)

    def test_lines_that_are_not_utf8(self):
        result = run(*CHAT, "-n", "1", input=b"caf\xe9\nx\n")
        self.assertEqual(result.returncode, 0)
        self.assertIn(b"not UTF-8", result.stderr)
        self.assertEqual(len(turns(result)), 1)

    def test_interrupt_ends_the_answer_alone(self):
        args = [BINARY, *map(str, CHAT), "-n", "4000", "--ignore-eos"]
        with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=environment()) as process:
            for _ in range(2):
                process.stdin.write(b"Tell me a long story.\n")
                process.stdin.flush()
                while not process.stdout.read1(64).strip():
                    pass  # the line end of the answer before
                process.send_signal(signal.SIGINT)
                line = b""
                while b"context" not in line:
                    line = process.stderr.readline()
                    self.assertNotEqual(line, b"")
                os.set_blocking(process.stdout.fileno(), False)
                process.stdout.read()
                os.set_blocking(process.stdout.fileno(), True)
            process.stdin.close()
            self.assertEqual(process.wait(timeout=60), 0)


class Refused(unittest.TestCase):
    def test_flags_that_exclude_each_other(self):
        for flags, part in ((["-f", "-"], "both read stdin"), (["--json", "-"], "--json"),
                            (["--prompt-cache", "x"], "--prompt-cache"), (["-n", "0"], "-n is 0")):
            result = run("generate", "-m", "x.gguf", "-i", *flags)
            self.assertEqual((result.returncode, result.stdout), (2, b""))
            self.assertIn(part, result.stderr.decode())


if __name__ == "__main__":
    unittest.main()
