"""What the tests of the command share: where it is, how to run it, small GGUF files."""
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("LONGDECODE_BINARY", str(ROOT / "build" / "longdecode"))
MODEL = pathlib.Path(os.environ.get(
    "LONGDECODE_MODEL", ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
HAS_MODEL = MODEL.is_file()
QUICK = "LONGDECODE_TEST_QUICK" in os.environ  # under sanitizers: no generation
NO_MODEL = f"no model at {MODEL}: set LONGDECODE_MODEL, or `make run` once"

UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9


def environment(more=None):
    """Nothing of ours but the CPU, one thread and `more`. Threads that wait do not spin: on a busy machine
    that costs a hundred times the work itself."""
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith("LONGDECODE_")}
    return clean | {"LONGDECODE_DEVICE": "cpu", "LONGDECODE_THREADS": "1",
                    "OMP_WAIT_POLICY": "passive"} | (more or {})


def run(*args, env=None, **kwargs):
    """Runs the command to its end, with environment(env)."""
    kwargs = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE} | kwargs
    if "input" in kwargs:
        del kwargs["stdin"]
    return subprocess.run([BINARY, *map(str, args)], stderr=subprocess.PIPE, timeout=300,
                          env=environment(env), check=False, **kwargs)


class Refusals(unittest.TestCase):
    """Tests with a folder of their own, in which a refused command leaves nothing."""
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def refused(self, args, *parts, env=None, code=2):
        before = sorted(self.folder.iterdir())
        result = run(*args, env=env)
        error = result.stderr.decode(errors="replace")
        with self.subTest(args=[str(arg)[:80] for arg in args]):
            self.assertEqual(result.returncode, code, error)
            self.assertEqual(result.stdout, b"")
            lines = [line for line in error.splitlines() if not line.startswith("longdecode: note")]
            self.assertEqual(len(lines), 1, error)
            self.assertTrue(lines[0].startswith("longdecode: error: "), error)
            for part in parts:
                self.assertIn(str(part), lines[0])
            self.assertEqual(sorted(self.folder.iterdir()), before)


def gguf(metadata, tensors=()):
    """A GGUF file: metadata as (key, type, value), tensors as (name, shape, type id, bytes)."""
    def text(value):
        data = value.encode()
        return struct.pack("<Q", len(data)) + data

    def encoded(kind, value):
        if kind == STRING:
            return text(value)
        if kind == ARRAY:
            return struct.pack("<IQ", STRING, len(value)) + b"".join(map(text, value))
        return struct.pack({UINT32: "<I", FLOAT32: "<f"}[kind], value)

    out = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, kind, value in metadata:
        out += text(key) + struct.pack("<I", kind) + encoded(kind, value)
    offset = 0
    for name, shape, kind, data in tensors:
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += (len(data) + 31) // 32 * 32
    out += bytes(-len(out) % 32)
    for _, _, _, data in tensors:
        out += data + bytes(-len(data) % 32)
    return out


# Metadata of a llama model small enough to write here; its tensors are left to the test.
TINY_LLAMA = [
    ("general.architecture", STRING, "llama"), ("llama.block_count", UINT32, 1),
    ("llama.context_length", UINT32, 64), ("llama.embedding_length", UINT32, 64),
    ("llama.feed_forward_length", UINT32, 64), ("llama.attention.head_count", UINT32, 1),
    ("llama.attention.head_count_kv", UINT32, 1),
    ("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
    ("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "gpt-2"),
    ("tokenizer.ggml.tokens", ARRAY, ["a", "b"]), ("tokenizer.ggml.merges", ARRAY, []),
]
