#!/usr/bin/env python3
"""Checks that every source of the repository keeps its rules; prints each violation as
path:line: what and exits 1 when there is one.

- clang-format (the repository's .clang-format), 100 columns
- at most 400 lines a file, 80 lines a function
- include direction: a layer includes only itself and the layers below it
- installed headers include no third-party or internal header
- the README's CPU table is what scripts/cpu_results.py makes of benchmarks/results/cpu
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_COLUMNS = 100
C_SUFFIXES = (".h", ".cc", ".c", ".cu", ".cuh")
SOURCE_SUFFIXES = C_SUFFIXES + (".py", ".sh", ".cmake")

# What each layer (a folder under src/, or a top folder) may include besides itself. `ref` serves
# tests and error columns: no layer of the library includes it.
LAYERS = {
    "base": set(),
    "cpu": {"base"},
    "cuda/ptx": {"base"},
    "cuda/device": {"base", "cuda/ptx"},
    "cuda/host": {"base", "cuda/ptx", "cuda/device"},
    "cuda/kernels": {"base", "cuda/ptx", "cuda/device", "cuda/host"},
    "cuda/model": {"base", "cuda/device", "cuda/host", "cuda/kernels"},
    "cuda": {"base", "cuda/ptx", "cuda/device", "cuda/host", "cuda/kernels"},
    "ops": {"base", "cpu", "cuda"},
    "cache": {"base", "ops"},
    "capi": {"base", "ops", "cache"},
    "ref": {"base"},
    "runner": {"base", "ops", "cache", "cuda/host", "cuda/model"},
    "benchmarks": {"base", "cuda/host", "cuda/model", "ops", "cache", "ref", "runner"},
    "tools": {"base", "ops", "cache", "ref", "runner", "benchmarks"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
FUNCTION_START = re.compile(
    r"^(?P<indent> {0,4})(?! |\}|namespace|struct|class|enum|union|if|for|while|switch|do|else|#)"
    r".*\)( const| noexcept| override| mutable| && | -> [\w:<>*& ]+)* \{$")
FUNCTION_CONTINUED = re.compile(r"^ {4,}\S.*\)( const| noexcept| override)* \{$")


def layer_of(path):
    """The layer of a path relative to the root or to src/; None outside every layer."""
    path = path.removeprefix("src/")
    for layer in sorted(LAYERS, key=len, reverse=True):
        if path.startswith(layer + "/"):
            return layer
    return None


def check_includes(path, lines):
    layer = layer_of(path)
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        bracket, target = match.groups()
        if path.startswith("include/") and ("/" in target) and not target.startswith("longdecode/"):
            yield f"{path}:{number}: an installed header includes {target}"
        target_layer = layer_of(target)
        if layer is None or bracket == "<" or target_layer in (None, layer):
            continue
        if target_layer not in LAYERS[layer]:
            yield (f"{path}:{number}: layer {layer} includes {target}; "
                   f"allowed layers: {', '.join(sorted(LAYERS[layer])) or 'none'}")


def check_lengths(path, lines):
    if len(lines) > MAX_FILE_LINES:
        yield f"{path}:1: {len(lines)} lines; at most {MAX_FILE_LINES}"
    if path.endswith(C_SUFFIXES):
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns; at most {MAX_COLUMNS}"


def check_functions(path, lines):
    """Relies on clang-format: a body ends at the first closing brace of the indentation at which
    its declaration began."""
    declaration, start, indent = 0, 0, ""
    for number, line in enumerate(lines, 1):
        if start:
            if re.fullmatch(re.escape(indent) + r"\}[;,)]*", line):
                if number - start + 1 > MAX_FUNCTION_LINES:
                    yield (f"{path}:{start}: a function of {number - start + 1} lines; "
                           f"at most {MAX_FUNCTION_LINES}")
                start = 0
            continue
        opens = FUNCTION_START.match(line)
        if declaration and (opens or FUNCTION_CONTINUED.match(line)):
            start = declaration
        elif opens:
            start, indent = number, opens.group("indent")
        first = re.match(r"^( {0,4})[\w~].*[(,]$", line)
        if first and not line.lstrip().startswith(("if", "for", "while", "switch", "return")):
            if not declaration:
                declaration, indent = number, first.group(1)
        elif not re.match(r"^ {4,}\S", line):
            declaration = 0


def check_format(paths):
    program = "clang-format-14"
    try:
        result = subprocess.run([program, "--dry-run", "-Werror", *paths], cwd=ROOT,
                                capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return [f"{program} is missing (Debian package {program})"]
    return [line for line in result.stderr.splitlines() if "error:" in line]


def main():
    argparse.ArgumentParser(description=__doc__,
                            formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                             cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sources = [path for path in listing.splitlines()
               if path.endswith(SOURCE_SUFFIXES) and (ROOT / path).is_file()]
    c_sources = [path for path in sources if path.endswith(C_SUFFIXES)]
    problems = []
    for path in sources:
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        problems += check_lengths(path, lines)
        if path in c_sources:
            problems += [*check_includes(path, lines), *check_functions(path, lines)]
    problems += check_format(c_sources)
    tables = subprocess.run([ROOT / "scripts" / "cpu_results.py", "--check"],
                            capture_output=True, text=True)
    problems += tables.stderr.splitlines()
    for problem in problems:
        print(problem)
    print(f"lint: {len(sources)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
