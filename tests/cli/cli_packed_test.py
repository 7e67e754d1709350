#!/usr/bin/env python3
"""scripts/gpu_attention.py: what it refuses, and the folder that it packs."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

from support import BINARY, ROOT, environment

SCRIPT = ROOT / "scripts" / "gpu_attention.py"


def run(*command, **env):
    return subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, check=False,
                          capture_output=True, text=True, timeout=300, env=environment(env))


class Packed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assert_refused(self, status, arguments, *parts):
        result = run(sys.executable, *arguments)
        with self.subTest(arguments=arguments):
            self.assertEqual((result.returncode, result.stdout), (status, ""), result.stderr)
            self.assertNotIn("Traceback", result.stderr)
            for part in parts:
                self.assertIn(part, result.stderr)

    def test_refusals(self):
        pack = [SCRIPT, "pack", "--binary"]
        self.assert_refused(2, [*pack, self.folder / "none", self.folder], "--binary is", "none")
        self.assert_refused(1, [*pack, SCRIPT, SCRIPT], "error:", SCRIPT.name)
        self.assert_refused(2, [SCRIPT, "run", self.folder], "gpu.json", "pack")

    def test_the_packed_command_has_its_libraries(self):
        packed = run(sys.executable, SCRIPT, "pack", self.folder, "--binary", BINARY)
        self.assertEqual(packed.returncode, 0, packed.stderr)
        libraries = self.folder / "lib"
        listed = run("ldd", self.folder / "longdecode", LD_LIBRARY_PATH=str(libraries)).stdout
        from_elsewhere = [line.split()[0] for line in listed.splitlines()
                          if " => " in line and f" => {libraries}/" not in line]
        system = ("libc.", "libm.", "libdl.", "librt.", "libpthread.")
        self.assertEqual([name for name in from_elsewhere if not name.startswith(system)], [])
        kept = self.folder / "out" / "gqa.json"
        kept.parent.mkdir()
        kept.write_text("[]")
        no_time = run(sys.executable, self.folder / "gpu_attention.py", "run", self.folder / "out",
                      "--no-peers", "--seconds", "-1")
        self.assertEqual(no_time.returncode, 1, no_time.stderr)
        self.assertIn("no time left", no_time.stdout)
        self.assertIn("no rows for ffd.json", no_time.stdout)
        self.assertEqual([path.name for path in kept.parent.iterdir()], [kept.name])
        self.assertEqual(kept.read_text(), "[]")


if __name__ == "__main__":
    unittest.main()
