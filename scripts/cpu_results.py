#!/usr/bin/env python3
"""The README's table of CPU measurements, from the raw rows in benchmarks/results/cpu.

    scripts/cpu_results.py --write          put the table into README.md
    scripts/cpu_results.py --check          exit 1 when README.md has another one (lint does this)
    scripts/cpu_results.py --plot FILE.png  time against kv_len (needs matplotlib)

How the rows are made: benchmarks/README.md.
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "cpu"
README = ROOT / "README.md"
BEGIN = "<!-- scripts/cpu_results.py: begin -->\n"
END = "<!-- scripts/cpu_results.py: end -->\n"


def rows_of(name):
    return json.loads((RESULTS / name).read_text())


def table(header, lines):
    rows = [header, ["---"] * len(header), *lines]
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in rows)


def attention_lines(rows):
    for row in rows:
        what = row["op"] + " " + row["method"]
        if row["kept_planted"] is not None:
            what += f", {row['kept_planted']:g} planted"
        if row["workload"] == "clustered":
            what += " in clusters"
        yield (what, row["kv_len"], f"{row['kept_fraction']:.3f}", f"{row['time_us']:.0f}",
               f"{row['read_floor_us']:.0f}", f"{row['read_floor_us'] / row['time_us']:.2f}")


def model_lines(rows):
    tests = sorted({(row["test"], row["depth"]) for row in rows}, key=lambda t: (t[0] == "tg", t))
    for test, depth in tests:
        found = {(row["engine"], row["method"]): f"{row['tok_s']:.0f}" for row in rows
                 if (row["test"], row["depth"]) == (test, depth)}
        name = f"decode after {depth}" if test == "tg" else "prefill"
        yield (name, found.get(("llama.cpp", "dense"), "-"),
               found.get(("longdecode", "dense"), "-"), found.get(("longdecode", "ffd"), "-"))


def section():
    attention = rows_of("attention.json")
    first = attention[0]
    model = rows_of("model.json")
    matvec = rows_of("matvec.json")
    return (
        f"Decode attention on {first['num_threads']} threads of a virtual machine "
        f"({first['device_name']}), {first['dtype']}, batch 1, caches flushed,\n"
        "microseconds; gqa has 32 query heads over 8 kv heads of 128, mla 16 heads over a latent\n"
        "cache. The floor is a plain read of the necessary bytes in the same run:\n\n"
        + table(("attention", "kv_len", "kept", "time", "floor", "floor / time"),
                attention_lines(attention))
        + "\nProducts of a 4-bit to 32-bit matrix with one vector, of the read bandwidth: "
        + ", ".join(f"{row['type']} {row['of_read']:.2f}" for row in matvec) + ".\n\n"
        f"SmolLM2-135M (Q4_1), {model[0]['threads']} threads, tokens per second:\n\n"
        + table(("", "llama.cpp", "longdecode dense", "longdecode ffd"), model_lines(model)))


def plot(path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    rows = [row for row in rows_of("attention.json")
            if row["op"] == "gqa" and row["workload"] == "planted"
            and row["kept_planted"] in (None, 0.01)]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for method in ("dense", "ffd"):
        points = sorted((row["kv_len"], row["time_us"], row["read_floor_us"]) for row in rows
                        if row["method"] == method)
        lens, times, floors = zip(*points)
        line, = axes.loglog(lens, times, "o-", label=method + (", 1% planted" * (method == "ffd")))
        axes.loglog(lens, floors, "--", color=line.get_color(), label=f"{method}: read floor")
    axes.set(xlabel="kv_len", ylabel="microseconds", title="GQA decode, 32 / 8 heads of 128")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--plot", metavar="FILE.png")
    options = parser.parse_args()
    readme = README.read_text()
    before, rest = readme.split(BEGIN)
    wanted = before + BEGIN + section() + END + rest.split(END)[1]
    if options.write:
        README.write_text(wanted)
    if options.plot:
        plot(options.plot)
    if options.check and readme != wanted:
        sys.exit("README.md: the CPU table is not what benchmarks/results/cpu says; "
                 "scripts/cpu_results.py --write")


if __name__ == "__main__":
    main()
