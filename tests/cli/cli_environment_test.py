#!/usr/bin/env python3
"""LONGDECODE_* variables: of the chosen command, behind its command line."""
import unittest

from support import Refusals, run

BAD = {"LONGDECODE_TEMP": "abc", "LONGDECODE_DELTA": "x", "LONGDECODE_CERTIFIED": "2",
       "LONGDECODE_DENSE_LAYERS": "1,,2", "LONGDECODE_CTX_SIZE": "many"}


class Environment(Refusals):
    def test_other_commands_do_not_read_it(self):
        result = run("info", env=BAD)
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        self.refused(["tokenize"], "no model: give -m FILE", env=BAD)
        self.refused(["bench", "attention", "--op", "x"], '--op is "x"', env=BAD)

    def test_help_does_not_need_it(self):
        for command in ("", "info", "generate", "perplexity", "bench", "bench model"):
            for args in (["--help"], ["-h"]):
                result = run(*command.split(), *args, env=BAD)
                with self.subTest(command=command):
                    self.assertEqual((result.returncode, result.stderr), (0, b""))
                    self.assertIn(b"--help", result.stdout)
        self.assertEqual(run("--version", env=BAD).returncode, 0)

    def test_the_command_line_wins(self):
        generate = ["generate", "-m", "none.gguf", "-p", "x"]
        given = ["--temp", "1", "--delta", "1", "--certified", "--dense-layers", "0", "-c", "8"]
        self.refused([*generate, *given], "-m: cannot open 'none.gguf'", env=BAD)
        for i in (0, 2, 4, 5, 7):
            count = 1 if given[i] == "--certified" else 2
            rest = given[:i] + given[i + count:]
            self.refused([*generate, *rest], "(set by LONGDECODE_", env=BAD)

    def test_flags_are_true_or_false(self):
        generate = ["generate", "-m", "none.gguf", "-p", "x"]
        for text in ("0x1", "1x", "10", "", "maybe", "TRUE"):
            for flag in ("--certified", "--chat", "--no-chat", "--verbose"):
                self.refused([*generate, f"{flag}={text}"],
                             f'{flag} is "{text}"; allowed: true or false')
            if text:
                self.refused(generate, f'--chat is "{text}"; allowed: true or false (set by '
                             "LONGDECODE_CHAT)", env={"LONGDECODE_CHAT": text})
        self.refused(["bench", "attention", "--op", "x", "--certified=2"], '--certified is "2"')
        for text in ("true", "false"):
            self.refused([*generate, f"--chat={text}"], "-m: cannot open")
            self.refused(generate, "-m: cannot open", env={"LONGDECODE_CHAT": text})
        self.refused(["generate", "-m", "none.gguf", "-p", "--certified="], "-m: cannot open")

    def test_numbers_of_another_kind(self):
        generate = ["generate", "-m", "none.gguf", "-p", "x"]
        self.refused([*generate, "--top-k", "0.5"], '--top-k is "0.5"; allowed: an integer')
        self.refused([*generate, "--top-k", "0x5"], '--top-k: "0x5" is not decimal')
        for text in ("1e-50", "-1e-50", "1e-400", "0.0001e-300"):
            self.refused([*generate, "--temp", text], f"--temp: {text} is out of range; allowed: 0,")
        self.refused([*generate, "--temp", "0x1p-1"], '--temp: "0x1p-1" is not decimal')
        for text in ("0", "0.0", "0e5", "1e-45"):
            self.refused([*generate, "--temp", text], "-m: cannot open")


if __name__ == "__main__":
    unittest.main()
