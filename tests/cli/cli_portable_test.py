#!/usr/bin/env python3
"""The folder that `cmake --install --component longdecode_portable` makes needs the C library alone."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from support import HAS_MODEL, MODEL, QUICK

CMAKE = os.environ.get("LONGDECODE_CMAKE", "cmake")
BUILD = os.environ.get("LONGDECODE_BUILD", "build")
C_LIBRARY = {"ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0",
             "librt.so.1"}


def needed(path):
    """The shared libraries that an ELF file names."""
    dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, check=True, text=True)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic.stdout))


class Portable(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        subprocess.run([CMAKE, "--install", BUILD, "--component", "longdecode_portable", "--prefix",
                        self.folder], check=True, capture_output=True)
        self.binary = self.folder / "bin" / "longdecode"

    def test_every_library_is_there(self):
        libraries = self.folder / "lib" / "longdecode"
        names = {path.name for path in libraries.iterdir()}
        for path in [self.binary, *libraries.iterdir()]:
            with self.subTest(path=path.name):
                self.assertLessEqual(needed(path), names | C_LIBRARY)
        self.assertFalse(names & C_LIBRARY)

    def test_it_takes_its_own_libraries_and_runs(self):
        libraries = subprocess.run(["ldd", self.binary], env={}, capture_output=True, check=True,
                                   text=True).stdout
        for name, path in re.findall(r"(\S+) => (\S+)", libraries):
            if name not in C_LIBRARY:
                self.assertIn(str(self.folder), path, name)
        flags = ["info"]
        if HAS_MODEL and not QUICK:
            flags = ["generate", "-m", MODEL, "-p", "a", "-n", "1", "--device", "cpu", "-t", "1"]
        result = subprocess.run([self.binary, *flags], env={}, capture_output=True, check=False,
                                timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
