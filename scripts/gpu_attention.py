#!/usr/bin/env python3
"""Measures GQA attention on a GPU machine that has no network and none of the libraries of the
build machine, next to cuDNN and flash SDPA of PyTorch, in one job.

    scripts/gpu_attention.py pack DIR       the command, its libraries, shapes, dump and scripts into DIR
    DIR/gpu_attention.py run OUT            there: OUT/gqa.json (dense and peers), OUT/ffd.json
    scripts/gpu_attention.py tables         the tables of the deep dives (MLA: gpu_mla), from the
                                            committed rows
    scripts/gpu_attention.py plot           docs/kernels/gqa-*.png from them (needs matplotlib)

Rows: benchmarks/README.md. Committed under benchmarks/results/<device>/.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = ROOT / "benchmarks" / "results" / "nvidia-h200"
PICTURES = ROOT / "docs" / "kernels"
SHAPES, DUMP = "benchmarks/shapes/gpu.json", "tests/data/smollm2_qkv.safetensors"
PEERS = "benchmarks/peers/sdpa_gpu.py"
PEER_SHAPES = ["1x4096", "1x8192", "1x16384", "1x32768", "1x65536", "1x131072", "1x262144",
               "4x65536", "16x16384"]
# The C library comes with the machine; everything else travels.
SYSTEM_LIBRARIES = re.compile(r"^(lib(c|m|dl|rt|pthread)\.so|ld-linux|linux-vdso)")
# The rows that the issue of the kernels bounds, in microseconds, on a card that reads 4.6 TB/s:
# (batch, kv_len, workload, kept_planted) for ffd, (batch, kv_len) for dense.
FFD_LIMITS = {(1, 262144, "planted", 0.005): 28, (1, 262144, "planted", 0.01): 30,
              (1, 262144, "planted", 0.05): 46, (1, 262144, "planted", 1): 262,
              (1, 131072, "planted", 0.02): 20, (1, 65536, "planted", 0.03): 14,
              (1, 16384, "planted", 0.1): 9.5, (4, 65536, "planted", 0.03): 33,
              (16, 16384, "planted", 0.1): 45, (1, 262144, "clustered", 0.01): 36}
DENSE_LIMITS = {(1, 262144): 246, (1, 65536): 68, (1, 16384): 22}


def pack(folder, binary):
    folder = pathlib.Path(folder)
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    shutil.copy2(binary, folder / "longdecode")
    for line in subprocess.check_output(["ldd", binary], text=True).splitlines():
        name, _, path = line.strip().partition(" => ")
        if path and not SYSTEM_LIBRARIES.match(name):
            shutil.copy2(path.split(" (")[0], folder / "lib" / name)
    for path in (SHAPES, DUMP, PEERS):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path)
    shutil.copy2(__file__, folder / "gpu_attention.py")


def rows_of(command, **how):
    """What the command writes to the file that it gets as its last argument."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rows.json")
        failed = subprocess.run([*command, path], cwd=HERE, check=False, **how).returncode != 0
        return failed, json.loads(path.read_text()) if path.exists() else []


def run(out, seconds, with_peers):
    """In a packed folder, shape by shape: what fails leaves the rows of the rest, and a file that
    would get none stays as it was."""
    out = pathlib.Path(out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    environment = dict(os.environ, LD_LIBRARY_PATH=str(HERE / "lib"), OMP_WAIT_POLICY="passive")
    failed, rows = False, []
    if with_peers:
        failed, rows = rows_of([sys.executable, HERE / PEERS, *PEER_SHAPES, "--json"])
    for shape in json.loads((HERE / SHAPES).read_text()):
        if time.monotonic() > deadline:
            print(f"no time left for {shape}", flush=True)
            failed = True
            continue
        (HERE / "shape.json").write_text(json.dumps([shape]))
        shape_failed, shape_rows = rows_of(
            [HERE / "longdecode", "bench", "attention", "--device", "cuda", "--timing", "graph",
             "--shapes", "shape.json", "--json"], env=environment)
        failed |= shape_failed
        rows += shape_rows
    for name, methods in (("gqa", ("dense", "cudnn", "flash")), ("ffd", ("ffd",))):
        chosen = [row for row in rows if row["method"] in methods]
        if not chosen:
            print(f"no rows for {name}.json: left as it is", flush=True)
            failed = True
            continue
        text = ",\n".join(json.dumps(row) for row in chosen)
        (out / f"{name}.json").write_text(f"[\n{text}\n]\n")
    return 1 if failed else 0


def load():
    return [row for name in ("gqa.json", "ffd.json")
            for row in json.loads((RESULTS / name).read_text())]


def table(header, lines):
    rows = [header, ["---"] * len(header), *lines]
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in rows)


def made_up(row):
    return row.get("workload") != "dump"


def limit_text(limit, time):
    return "" if limit is None else f"{limit:g}" + ("" if time <= limit else " (missed)")


def dense_table(rows):
    peers = {(row["method"], row["batch"], row["kv_len"]): row["time_us"] for row in rows
             if row["method"] in ("cudnn", "flash")}
    lines = []
    for row in rows:
        if row["method"] != "dense" or not made_up(row):
            continue
        key = (row["batch"], row["kv_len"])
        peer = [f"{peers[(name, *key)]:.1f}" if (name, *key) in peers else ""
                for name in ("cudnn", "flash")]
        time, floor = row["time_us"], row["read_floor_us"]
        lines.append([*key, f"{time:.1f}", f"{floor:.1f}", f"{time / floor:.3f}",
                      f"{row['necessary_bytes'] / time * 1e-3:.0f}", f"{row['max_rel_err']:.1e}",
                      *peer, limit_text(DENSE_LIMITS.get(key), time)])
    return table(["batch", "kv_len", "us", "floor, same run", "ratio", "GB/s", "max_rel_err",
                  "cuDNN us", "flash us", "limit"], sorted(lines, key=lambda line: line[:2]))


def ffd_table(rows):
    """The rows with a limit, at both margins."""
    lines = []
    for row in rows:
        key = (row["batch"], row["kv_len"], row.get("workload"), row.get("kept_planted"))
        if row["method"] == "ffd" and key in FFD_LIMITS:
            lines.append([*key[:3], f"{100 * key[3]:g}%", f"{row['margin_sigmas']:g}",
                          *measured(row), limit_text(FFD_LIMITS[key], row["time_us"])])
    return table(["batch", "kv_len", "workload", "planted", "margin", *MEASURED, "limit"],
                 lines)


MEASURED = ["kept", "us", "MB", "floor", "of the floor", "max_rel_err", "missed_exact"]


def measured(row):
    return [f"{100 * row['kept_fraction']:.2f}%", f"{row['time_us']:.1f}",
            f"{row['necessary_bytes'] * 1e-6:.1f}", f"{row['read_floor_us']:.1f}",
            f"{100 * row['read_floor_us'] / row['time_us']:.0f}%", f"{row['max_rel_err']:.1e}",
            f"{100 * row['missed_exact']:.3f}%"]


def kept_table(rows):
    lines = [[f"{100 * row['kept_planted']:g}%", f"{row['margin_sigmas']:g}", *measured(row)]
             for row in kept_sweep(rows)]
    return table(["planted", "margin", *MEASURED], lines)


def dump_table(rows):
    lines = [[row["layer"], row["kv_len"], row["method"],
              f"{row['margin_sigmas']:g}" if row["method"] == "ffd" else "", *measured(row)]
             for row in rows if not made_up(row)]
    return table(["layer", "kv_len", "method", "margin", *MEASURED], lines)


def mla_tables():
    """Rows with a limit, and the sweep beside the better public kernel where one was measured."""
    rows = json.loads((RESULTS / "mla.json").read_text())
    # The limits are for a card that reads 1.2 GB at 4.6 TB/s; this one takes so many times as long.
    card = next(row["read_floor_us"] / (row["necessary_bytes"] / 4.6e6) for row in rows
                if (row["num_q_heads"], row["batch"], row["kv_len"]) == (16, 16, 65536))
    limited = [[row["num_q_heads"], row["batch"], row["kv_len"], f"{row['time_us']:.1f}",
                f"{row['read_floor_us']:.1f}", f"{row['time_us'] / row['read_floor_us']:.3f}",
                f"{row['limit_us']:g}", limit_text(round(row["limit_us"] * card, 1), row["time_us"])]
               for row in rows if row["limit_us"] > 0]
    sweep = {}
    for row in rows:
        if (row["query_len"], row["page_size"], row["dtype"], row["ragged"]) == (1, 64, "bf16", False):
            sweep[(row["num_q_heads"], row["batch"], row["kv_len"])] = row["time_us"]
    lens = [512 << i for i in range(8)]
    lines = [[heads, batch, *(f"{sweep[(heads, batch, kv_len)]:.1f}" +
                              peer_text(heads, batch, kv_len) for kv_len in lens)]
             for heads in (8, 16, 32) for batch in (1, 16, 32)]
    return (table(["heads", "batch", "kv_len", "us", "floor", "ratio", "limit", "limit here"],
                  limited) + "\n"
            + table(["heads", "batch", *lens], lines))


# FlashMLA or its ETAP variant, whichever was faster on an H200, flushed by a pass that leaves dirty
# lines, us.
MLA_PEERS = {(16, 1, 512): 12.8, (16, 1, 4096): 18.9, (16, 1, 16384): 27.6, (16, 1, 65536): 45.4,
             (16, 16, 512): 16.5, (16, 16, 4096): 35.5, (16, 16, 8192): 55.6,
             (16, 16, 16384): 91.8, (16, 16, 65536): 291, (16, 32, 65536): 554,
             (8, 16, 65536): 311}


def peer_text(*shape):
    return f" ({MLA_PEERS[shape]:g})" if shape in MLA_PEERS else ""


def kept_sweep(rows):
    chosen = [row for row in rows if row["method"] == "ffd" and row["workload"] == "planted"
              and (row["batch"], row["kv_len"]) == (1, 262144)]
    return sorted(chosen, key=lambda row: (row["kept_planted"], row["margin_sigmas"]))


def length_series(rows):
    """{name: [row by kv_len]} at batch 1; ffd with 1% planted and the default margin."""
    series = {}
    for row in rows:
        if row["batch"] != 1 or not made_up(row):
            continue
        name = {"dense": "dense", "cudnn": "cuDNN", "flash": "flash"}.get(row["method"])
        if row["method"] == "ffd" and (row["workload"], row["kept_planted"],
                                       row["margin_sigmas"]) == ("planted", 0.01, 0.5):
            name = "ffd, 1% planted"
        if name:
            series.setdefault(name, []).append(row)
    for values in series.values():
        values.sort(key=lambda row: row["kv_len"])
    return series


def fit(points):
    """Slope in ns a token and intercept in us, by least squares."""
    count = len(points)
    mean_x, mean_y = (sum(p[i] for p in points) / count for i in (0, 1))
    slope = (sum((x - mean_x) * (y - mean_y) for x, y in points)
             / sum((x - mean_x) ** 2 for x, _ in points))
    return 1e3 * slope, mean_y - slope * mean_x


def plot_lengths(pyplot, rows):
    figure, (time, size, share) = pyplot.subplots(1, 3, figsize=(15, 4.6))
    for name, values in length_series(rows).items():
        lens = [row["kv_len"] for row in values]
        slope, start = fit([(row["kv_len"], row["time_us"]) for row in values])
        line, = time.loglog(lens, [row["time_us"] for row in values], "o-",
                            label=f"{name}: {start:.1f} us + {slope:.2f} ns a token")
        if "read_floor_us" not in values[0]:
            continue
        color = line.get_color()
        time.loglog(lens, [row["read_floor_us"] for row in values], "--", color=color,
                    label=f"{name}: read floor")
        size.loglog(lens, [row["necessary_bytes"] * 1e-6 for row in values], "o-", color=color,
                    label=name)
        share.semilogx(lens, [100 * row["read_floor_us"] / row["time_us"] for row in values], "o-",
                       color=color, label=name)
    time.set(xlabel="kv_len", ylabel="microseconds", title="time")
    size.set(xlabel="kv_len", ylabel="MB", title="necessary bytes")
    share.set(xlabel="kv_len", ylabel="percent", title="read floor / time", ylim=(0, 105))
    for axes in (time, size, share):
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    return figure


def plot_kept(pyplot, rows):
    figure, (time, size, share) = pyplot.subplots(1, 3, figsize=(15, 4.6))
    sweep = kept_sweep(rows)
    for margin in sorted({row["margin_sigmas"] for row in sweep}):
        values = sorted((row for row in sweep if row["margin_sigmas"] == margin),
                        key=lambda row: row["kept_planted"])
        kept = [100 * row["kept_planted"] for row in values]
        line, = time.loglog(kept, [row["time_us"] for row in values], "o-",
                            label=f"ffd, margin {margin:g}")
        color = line.get_color()
        time.loglog(kept, [row["read_floor_us"] for row in values], "--", color=color,
                    label=f"margin {margin:g}: read floor")
        size.loglog(kept, [row["necessary_bytes"] * 1e-6 for row in values], "o-", color=color)
        share.semilogx(kept, [100 * row["read_floor_us"] / row["time_us"] for row in values], "o-",
                       color=color)
    for name, values in length_series(rows).items():
        for row in values:
            if row["kv_len"] == 262144 and row["method"] != "ffd":
                style = {"dense": "-", "cuDNN": "--", "flash": ":"}[name]
                time.axhline(row["time_us"], color="gray", linewidth=1, linestyle=style, label=name)
    time.set(xlabel="planted, % of groups", ylabel="microseconds", title="time, kv_len 262144")
    size.set(xlabel="planted, % of groups", ylabel="MB", title="necessary bytes")
    share.set(xlabel="planted, % of groups", ylabel="percent", title="read floor / time",
              ylim=(0, 105))
    time.legend(fontsize=8)
    for axes in (time, size, share):
        axes.grid(alpha=0.3)
    return figure


def plot(rows):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    for name, draw in (("gqa-kv-len.png", plot_lengths), ("gqa-kept.png", plot_kept)):
        figure = draw(pyplot, rows)
        figure.suptitle(f"GQA decode, 32 / 8 heads of 128, bf16, batch 1, {rows[0]['device_name']}")
        figure.tight_layout()
        figure.savefig(PICTURES / name, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("folder")
    packing.add_argument("--binary", default=ROOT / "build" / "longdecode")
    running = commands.add_parser("run")
    running.add_argument("out")
    running.add_argument("--seconds", type=float, default=1e9, help="start no shape after this")
    running.add_argument("--no-peers", action="store_true")
    commands.add_parser("tables")
    commands.add_parser("plot")
    options = parser.parse_args()
    if options.command == "pack" and not os.access(options.binary, os.X_OK):
        packing.error(f"--binary is {options.binary}; allowed: the built command")
    if options.command == "run" and not (HERE / SHAPES).is_file():
        running.error(f"there is no {HERE / SHAPES}: run the copy of this script that pack makes")
    try:
        sys.exit(execute(options))
    except (OSError, subprocess.CalledProcessError, ModuleNotFoundError) as error:
        sys.exit(f"{parser.prog}: error: {error}")


def execute(options):
    """The exit status."""
    if options.command == "pack":
        pack(options.folder, options.binary)
    elif options.command == "run":
        return run(options.out, options.seconds, not options.no_peers)
    elif options.command == "plot":
        plot(load())
    else:
        rows = load()
        for draw in (dense_table, ffd_table, kept_table, dump_table):
            print(draw(rows))
        print(mla_tables(), flush=True)
    return 0


if __name__ == "__main__":
    main()
