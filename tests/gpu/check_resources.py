#!/usr/bin/env python3
"""Checks what ptxas said about every kernel instance (OBJECT.ptxas beside each CUDA object):
registers within the limit of its threads, no spills, and no shared memory beside what a launch asks
for, which the code itself keeps within the GPU's. Needs no GPU.

usage: check_resources.py BUILD_DIR
"""
import pathlib
import re
import sys

# Registers per thread, by the last part of the instance's name: 65536 / threads (in whole groups of
# four warps), and at most 255. rowsN: mla_decode; dimN: gqa_decode.
REGISTER_LIMITS = {"rows8": 255, "rows16": 255, "rows32": 255, "rows48": 128, "rows64": 128,
                   "dim64": 96, "dim96": 128, "dim128": 96, "dim256": 168}
# The same of kernels for sm_80: 288 threads.
SM80_REGISTERS = {"dim128": 224}
# FFD: one CTA an SM of 512 threads (which move registers between warps when they run), or 256 at
# head_dim 256.
FFD_REGISTERS = {"dim64": 128, "dim96": 128, "dim128": 128, "dim256": 255}
FFD_SM80_REGISTERS = 255  # 256 threads at most
# The merge kernel (of gqa_decode) must be resident beside the decode kernel: 2 CTAs of 256 threads
# an SM. Its shared memory is its own.
MERGE_REGISTERS = 128
MERGE_SHARED_BYTES = 8192

# The operations of cuda/model, by folder: registers per thread (65536 / threads / CTAs an SM), and
# bytes of spill stores that are allowed: at head_dim 256 two-plane prefill keeps 128 outputs, 32
# scores and what dequantising needs.
MODEL_REGISTERS = {"gqa_prefill": 255, "matvec": 128, "rotary": 128, "rows": 255, "sampling": 128}
MODEL_SPILLS = {"dim256": 256}

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*, (\d+) bytes smem)?")


def read_report(path):
    """[(kernel, spill store bytes, registers, bytes of shared memory)] of one object."""
    kernels, name, spills = [], None, None
    for line in path.read_text().splitlines():
        if match := ENTRY.search(line):
            name = match.group(1)
        elif match := SPILLS.search(line):
            spills = int(match.group(2))
        elif (match := USED.search(line)) and name:
            kernels.append((name, spills, int(match.group(1)), int(match.group(2) or 0)))
    return kernels


def check_ffd(instance, kernels):
    is_sm80 = instance.startswith("sm80_")
    limit = FFD_SM80_REGISTERS if is_sm80 else FFD_REGISTERS[instance.split("_")[1]]
    problems = [] if len(kernels) == 1 else [f"ffd {instance}: {len(kernels)} kernels, expected 1"]
    for _, spills, registers, shared in kernels:
        print(f"{instance:18} ffd registers {registers:3} spill stores {spills} bytes")
        if registers > limit:
            problems.append(f"ffd {instance}: {registers} registers, at most {limit}")
        if spills > 0:
            problems.append(f"ffd {instance}: {spills} bytes spilled")
        if shared > 0:
            problems.append(f"ffd {instance}: {shared} bytes of shared memory beside the launch's")
    return problems


def check_model(folder, report):
    name = report.name.removesuffix(".cu.o.ptxas")
    kernels = read_report(report)
    problems = [] if kernels else [f"{folder} {name}: no kernel in the report"]
    for _, spills, registers, _ in kernels:
        print(f"{folder} {name}: registers {registers:3} spill stores {spills} bytes")
        if registers > MODEL_REGISTERS[folder]:
            problems.append(f"{folder} {name}: {registers} registers, at most "
                            f"{MODEL_REGISTERS[folder]}")
        if spills > MODEL_SPILLS.get(name, 0):
            problems.append(f"{folder} {name}: {spills} bytes spilled; at most "
                            f"{MODEL_SPILLS.get(name, 0)}")
    return problems


def check_decode(report, kernels):
    """gqa_decode, with its merge kernel, and mla_decode."""
    instance = report.name.removesuffix(".cu.o.ptxas")
    architecture = report.parts[-3]
    expected = 1 if "_rows" in instance else 2
    problems = []
    if len(kernels) != expected:
        problems.append(f"{architecture} {instance}: {len(kernels)} kernels in the report, "
                        f"expected {expected}")
    limits = SM80_REGISTERS if architecture == "sm80" else REGISTER_LIMITS
    for name, spills, registers, shared in kernels:
        is_merge = "merge" in name
        limit = MERGE_REGISTERS if is_merge else limits[instance.split("_")[1]]
        shared_limit = MERGE_SHARED_BYTES if is_merge else 0
        kernel = f"{architecture} {instance} {'merge' if is_merge else 'decode'}"
        print(f"{kernel:24} registers {registers:3} spill stores {spills} bytes")
        if registers > limit:
            problems.append(f"{kernel}: {registers} registers, at most {limit}")
        if spills > 0:
            problems.append(f"{kernel}: {spills} bytes spilled; none are allowed")
        if shared > shared_limit:
            problems.append(f"{kernel}: {shared} bytes of shared memory, at most {shared_limit}")
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
        else:
            problems += check_decode(report, kernels)
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
