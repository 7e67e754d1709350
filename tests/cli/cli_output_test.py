#!/usr/bin/env python3
"""Outputs: whole or not at all, where the path says, and nothing else changes."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from support import BINARY, HAS_MODEL, MODEL, NO_MODEL, QUICK, Refusals, environment, run

AS_ROOT = os.geteuid() == 0


def shell(line, **kwargs):
    return subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                          check=False, timeout=100, env=environment(), **kwargs)


class Output(Refusals):
    def shell_refused(self, line, message):
        result = shell(line)
        self.assertEqual(result.returncode, 2)
        self.assertIn(message, result.stderr)

    def test_open_descriptors_are_written_not_replaced(self):
        for path, append in (("/dev/stdout", ">>"), ("/dev/stderr", "2>>"), ("/dev/fd/7", "7>>"),
                             ("/proc/self/fd/7", "7>>"), ("/proc/thread-self/fd/7", "7>>")):
            log = self.write("log", b"precious\n")
            link = self.folder / "link"
            link.symlink_to(path)
            for output in (path, link) if "thread" not in path else ():
                inode = log.stat().st_ino
                before = log.read_bytes()
                result = shell(f'"{BINARY}" info --json {output} {append} "{log}"')
                with self.subTest(output=output):
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertEqual(log.stat().st_ino, inode)
                    self.assertTrue(log.read_bytes().startswith(before))
                    self.assertGreater(log.stat().st_size, len(before))
            link.unlink()
        result = shell(f'"{BINARY}" info --json /dev/fd/7 7>"{log}"')
        self.assertEqual(json.loads(log.read_text())["backends"][0]["name"], "cpu", result.stderr)

    def test_a_deleted_file_behind_a_descriptor(self):
        log = self.folder / "log"
        result = shell(f'exec 7>"{log}"; rm "{log}"; "{BINARY}" info --json /dev/fd/7')
        self.assertEqual((result.returncode, list(self.folder.iterdir())), (0, []), result.stderr)

    def test_descriptors_that_cannot_be_written(self):
        self.shell_refused(f'"{BINARY}" info --json /dev/stdin < "{BINARY}"',
                           b"--json /dev/stdin is descriptor 0, which is not open")
        self.refused(["info", "--json", "/dev/fd/99"], "--json /dev/fd/99", "not open for writing")
        log = self.write("log", b"precious")
        with open(log, "ab") as file:
            self.refused(["info", "--json", f"/proc/{os.getpid()}/fd/{file.fileno()}"],
                         "--json /proc/", "is no regular file")
        for args in ("dump-qkv -m x -f x -o /dev/fd/7", "generate -m x -p x --prompt-cache /dev/fd/7"):
            self.shell_refused(f'"{BINARY}" {args} 7>>"{log}"', b"/dev/fd/7 is no regular file")
        self.assertEqual(log.read_bytes(), b"precious")

    def test_stdin_is_not_overwritten(self):
        text = self.write("text", b"words")
        for args in ("generate", "perplexity"):
            self.shell_refused(f'"{BINARY}" {args} -m x -f - --json "{text}" < "{text}"',
                               b"is the file on stdin (-)")
        self.assertEqual(text.read_bytes(), b"words")

    def test_mode_is_kept(self):
        path = self.write("out.json", b"old")
        for mode in (0o600, 0o640, 0o755):
            path.chmod(mode)
            self.assertEqual(run("info", "--json", path).returncode, 0)
            self.assertEqual(path.stat().st_mode & 0o7777, mode)
            json.loads(path.read_text())
        if AS_ROOT:
            os.chown(path, 1234, 2345)
            self.assertEqual(run("info", "--json", path).returncode, 0)
            self.assertEqual((path.stat().st_uid, path.stat().st_gid), (1234, 2345))
        new = self.folder / "new.json"
        result = shell(f'umask 027; "{BINARY}" info --json "{new}"')
        self.assertEqual((result.returncode, new.stat().st_mode & 0o7777), (0, 0o640))

    def test_names(self):
        path = self.folder / ("n" * 255)
        self.assertEqual(run("info", "--json", path).returncode, 0)
        self.assertEqual(run("info", "--json", path).returncode, 0)
        json.loads(path.read_text())
        self.refused(["info", "--json", self.folder / ("n" * 256)], "--json", "File name too long")

    def test_planted_names_are_not_followed(self):
        victim = self.write("victim", b"precious")
        script = f'''for i in 0 1 2 3; do ln -s "{victim}" "{self.folder}/.longdecode-$$-$i"
                     ln -s "{victim}" "{self.folder}/o.json.tmp$$"; done 2>/dev/null
                     exec "{BINARY}" info --json "{self.folder}/o.json"'''
        self.assertEqual(shell(script).returncode, 0)
        self.assertEqual(victim.read_bytes(), b"precious")
        json.loads((self.folder / "o.json").read_text())

    def test_a_full_disk_loses_nothing(self):
        path = self.write("out.json", b"old")
        result = shell(f'ulimit -f 1; "{BINARY}" info --json "{path}" > /dev/null')
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"--json {path}".encode(), result.stderr)
        self.assertIn(b"File too large", result.stderr)
        self.assertEqual((path.read_bytes(), len(list(self.folder.iterdir()))), (b"old", 1))

    @unittest.skipIf(AS_ROOT and not os.path.exists("/usr/bin/setpriv"), "needs another user")
    def test_a_writable_file_in_a_read_only_folder(self):
        with tempfile.TemporaryDirectory() as name:
            inner = pathlib.Path(name) / "inner"
            inner.mkdir()
            path = inner / "out.json"
            path.write_bytes(b"x" * 100000)
            path.chmod(0o666)
            inner.chmod(0o555)
            os.chmod(name, 0o755)
            user = "setpriv --reuid 65534 --clear-groups " if AS_ROOT else ""
            result = shell(f'{user}"{BINARY}" info --json "{path}"')
            inner.chmod(0o755)
            if b"Permission denied" in result.stderr and b"setpriv" in result.stderr:
                self.skipTest("the binary is out of the other user's reach")
            self.assertEqual(result.returncode, 0, result.stderr)
            json.loads(path.read_text())
            self.assertEqual(list(inner.iterdir()), [path])

    @unittest.skipUnless(AS_ROOT, "needs mounts")
    def test_a_mounted_file(self):
        path = self.write("out.json", b"old")
        source = self.write("source.json", b"x" * 100000)
        script = f'mount --bind "{source}" "{path}" || exit 77; "{BINARY}" info --json "{path}"'
        result = subprocess.run(["unshare", "--mount", "sh", "-c", script], check=False, timeout=60,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if b"unshare" in result.stderr or result.returncode == 77:
            self.skipTest("no mounts here")
        self.assertEqual(result.returncode, 0, result.stderr)
        json.loads(source.read_text())
        self.assertEqual(path.read_bytes(), b"old")

    @unittest.skipUnless(HAS_MODEL and not QUICK, NO_MODEL)
    def test_signals_leave_nothing(self):
        text = self.write("text.txt", b"one two three four " * 1000)
        before = sorted(self.folder.iterdir())
        for args in (["dump-qkv", "-f", text, "-o", self.folder / "qkv"],
                     ["generate", "-p", "x", "--ignore-eos", "-n", "4000", "--prompt-cache",
                      self.folder / "qkv"]):
            for number in (signal.SIGTERM, signal.SIGKILL):
                process = subprocess.Popen([BINARY, *map(str, args), "-m", MODEL],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                           env=environment())
                time.sleep(1.5)
                process.send_signal(number)
                self.assertEqual(process.wait(), -number)
                cache = self.folder / "qkv"  # of the prompt alone, whole
                left = [path for path in sorted(self.folder.iterdir()) if path != cache]
                self.assertEqual(left, before)
                cache.unlink(missing_ok=True)


if __name__ == "__main__":
    unittest.main()
