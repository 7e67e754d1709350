#!/usr/bin/env python3
"""Checks what ptxas said about every kernel instance (OBJECT.ptxas beside each CUDA object):
registers within the limit of its threads, and no spills. Needs no GPU.

usage: check_resources.py BUILD_DIR
"""
import pathlib
import re
import sys

# Registers per thread, by the last part of the instance's name: 65536 / threads (in whole groups of
# four warps), and at most 255. rowsN: mla_decode; dimN: gqa_decode.
REGISTER_LIMITS = {"rows8": 255, "rows16": 255, "rows32": 255, "rows48": 128, "rows64": 128,
                   "dim64": 96, "dim96": 128, "dim128": 96, "dim256": 168}
# FFD: one CTA an SM of 512 threads (which move registers between warps when they run), or 256 at
# head_dim 256.
FFD_REGISTERS = {"dim64": 128, "dim96": 128, "dim128": 128, "dim256": 255}
# The merge kernel (of gqa_decode) must be resident beside the decode kernel: 2 CTAs of 256 threads
# an SM.
MERGE_REGISTERS = 128

# The operations of cuda/model, by folder: registers per thread (65536 / threads / CTAs an SM), and
# bytes of spill stores that are allowed: at head_dim 256 two-plane prefill keeps 128 outputs, 32
# scores and what dequantising needs.
MODEL_REGISTERS = {"gqa_prefill": 255, "matvec": 128, "rotary": 128, "rows": 255, "sampling": 128}
MODEL_SPILLS = {"dim256": 256}

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def read_report(path):
    """[(kernel, spill store bytes, registers)] of one object."""
    kernels, name, spills = [], None, None
    for line in path.read_text().splitlines():
        if match := ENTRY.search(line):
            name = match.group(1)
        elif match := SPILLS.search(line):
            spills = int(match.group(2))
        elif (match := USED.search(line)) and name:
            kernels.append((name, spills, int(match.group(1))))
    return kernels


def check_ffd(instance, kernels):
    limit = FFD_REGISTERS[instance.split("_")[1]]
    problems = [] if len(kernels) == 1 else [f"ffd {instance}: {len(kernels)} kernels, expected 1"]
    for _, spills, registers in kernels:
        print(f"{instance:18} ffd registers {registers:3} spill stores {spills} bytes")
        if registers > limit:
            problems.append(f"ffd {instance}: {registers} registers, at most {limit}")
        if spills > 0:
            problems.append(f"ffd {instance}: {spills} bytes spilled")
    return problems


def check_model(folder, report):
    name = report.name.removesuffix(".cu.o.ptxas")
    kernels = read_report(report)
    problems = [] if kernels else [f"{folder} {name}: no kernel in the report"]
    for _, spills, registers in kernels:
        print(f"{folder} {name}: registers {registers:3} spill stores {spills} bytes")
        if registers > MODEL_REGISTERS[folder]:
            problems.append(f"{folder} {name}: {registers} registers, at most "
                            f"{MODEL_REGISTERS[folder]}")
        if spills > MODEL_SPILLS.get(name, 0):
            problems.append(f"{folder} {name}: {spills} bytes spilled; at most "
                            f"{MODEL_SPILLS.get(name, 0)}")
    return problems


def main():
    build = pathlib.Path(sys.argv[1])
    reports = sorted(build.glob("**/instances/*.cu.o.ptxas"))
    problems = [] if reports else [f"no ptxas reports under {build}"]
    for report in reports:
        instance = report.name.removesuffix(".cu.o.ptxas")
        kernels = read_report(report)
        if "ffd_decode" in report.parts:
            problems += check_ffd(instance, kernels)
            continue
        expected = 1 if "_rows" in instance else 2
        if len(kernels) != expected:
            problems.append(f"{instance}: {len(kernels)} kernels in the report, expected {expected}")
        for name, spills, registers in kernels:
            is_merge = "merge" in name
            limit = MERGE_REGISTERS if is_merge else REGISTER_LIMITS[instance.split("_")[1]]
            kind = "merge" if is_merge else "decode"
            print(f"{instance:12} {kind:6} registers {registers:3} spill stores {spills} bytes")
            if registers > limit:
                problems.append(f"{instance} {kind}: {registers} registers, at most {limit}")
            if spills > 0:
                problems.append(f"{instance} {kind}: {spills} bytes spilled; none are allowed")
    for folder in MODEL_REGISTERS:
        found = sorted(build.glob(f"**/kernels/{folder}/*.cu.o.ptxas"))
        problems += [] if found else [f"no ptxas reports of {folder} under {build}"]
        for report in found:
            problems += check_model(folder, report)
    for problem in problems:
        print(f"FAILED {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
