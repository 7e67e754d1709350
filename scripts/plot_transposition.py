#!/usr/bin/env python3
"""Writes the tables and plots of docs/kernels/2026-11-29-transposition.md from the raw results.

The tables go between the marks `<!-- table NAME -->` and `<!-- end -->` of the document; the plots
need matplotlib (a virtual environment will do) and go beside it.
"""
import json
import math
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "kernels" / "2026-11-29-transposition.md"
RESULTS = ROOT / "benchmarks" / "results" / "nvidia-h200"
KEY_DIM, VALUE_DIM, TOKEN_BYTES = 576, 512, 1152
BATCH, KV_LEN = 16, 65536
# bytes/s and tensor operations/s. The H200's are measured (a plain read, a large product).
GPUS = {"H20": (4.0e12, 148e12), "H200": (4.6e12, 790e12)}
PAPER_H20 = {"transposed": 89, "padded to 64 rows": 32}  # TFLOP/s at 64K, batch 16, 16 heads


def padded_rows(rows):
    """Rows of the two products of a kernel with the query rows on M, in tiles of 64."""
    issued = math.ceil(rows / 64) * 64
    return issued, issued


def our_rows(rows):
    """The same for cuda/mla_decode, see tile.h and config.cuh: scores, then values."""
    for instance in (8, 16, 32):
        if rows <= instance:
            return instance, instance
    return (64, 48) if rows <= 48 else padded_rows(rows)


def issued_per_useful(rows, issued_rows):
    scores, values = issued_rows(rows)
    return (KEY_DIM * scores + VALUE_DIM * values) / ((KEY_DIM + VALUE_DIM) * rows)


def useful_ops(rows):
    return 2 * rows * BATCH * KV_LEN * (KEY_DIM + VALUE_DIM)


def predicted_us(gpu, rows, issued_rows):
    bandwidth, rate = GPUS[gpu]
    memory = BATCH * KV_LEN * TOKEN_BYTES / bandwidth
    tensor = useful_ops(rows) * issued_per_useful(rows, issued_rows) / rate
    return 1e6 * max(memory, tensor), "memory" if memory >= tensor else "tensor cores"


def read(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def counter_table():
    rows = []
    for r in read("mla-tensor.json"):
        heads = r["num_q_heads"]
        rows.append([heads, f"{r['hgmma_ops'] / r['useful_ops']:.3f}",
                     f"{issued_per_useful(heads, our_rows):.3f}",
                     f"{issued_per_useful(heads, padded_rows):.3f}",
                     f"{r['dram_bytes_read'] / (r['batch'] * r['kv_len'] * TOKEN_BYTES):.3f}"])
    return markdown(["heads", "issued / useful, ncu", "counted by hand", "64-row kernel",
                     "DRAM bytes / latent bytes, ncu"], rows)


def h20_table():
    rows = []
    for name, issued in (("transposed", our_rows), ("padded to 64 rows", padded_rows)):
        us, bound = predicted_us("H20", 16, issued)
        rate = useful_ops(16) / us * 1e-6
        rows.append([name, f"{us:.0f}", bound, f"{rate:.0f}", PAPER_H20[name],
                     f"{PAPER_H20[name] / rate:.2f}"])
    return markdown(["kernel", "predicted us", "bound by", "TFLOP/s", "paper, TFLOP/s",
                     "paper / predicted"], rows)


def measured():
    shape = {"kv_len": KV_LEN, "batch": BATCH, "query_len": 1, "page_size": 64, "dtype": "bf16"}
    return [r for r in read("mla.json") if all(r[key] == value for key, value in shape.items())]


def plot_issued(plt):
    figure, axes = plt.subplots(figsize=(7, 3.6))
    heads = range(1, 129)
    axes.plot(heads, [issued_per_useful(h, padded_rows) for h in heads], label="64-row tiles")
    axes.plot(heads, [issued_per_useful(h, our_rows) for h in heads], label="cuda/mla_decode")
    counters = read("mla-tensor.json")
    axes.plot([r["num_q_heads"] for r in counters],
              [r["hgmma_ops"] / r["useful_ops"] for r in counters], "ko", label="ncu, H200")
    axes.set(xlabel="query rows", ylabel="issued / useful tensor operations", yscale="log", xscale="log",
             xticks=[1, 2, 4, 8, 16, 32, 64, 128], xticklabels=[1, 2, 4, 8, 16, 32, 64, 128],
             yticks=[1, 2, 4, 8, 16, 32, 64], yticklabels=[1, 2, 4, 8, 16, 32, 64])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(DOCUMENT.with_name("transposition-issued.png"), dpi=110)


def plot_roofline(plt):
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6))
    heads = range(1, 129)
    for axes, gpu in zip(panels, GPUS):
        for name, issued in (("padded to 64 rows", padded_rows), ("cuda/mla_decode", our_rows)):
            rates = [useful_ops(h) / predicted_us(gpu, h, issued)[0] * 1e-6 for h in heads]
            axes.plot(heads, rates, label=f"roofline, {name}")
        axes.set(title=gpu, xlabel="query rows", ylabel="useful TFLOP/s", xscale="log",
                 yscale="log", xticks=[1, 4, 16, 64, 128], xticklabels=[1, 4, 16, 64, 128])
        axes.grid(alpha=0.3)
    panels[0].plot([16, 16], list(PAPER_H20.values()), "r^", label="paper, measured")
    rows = measured()
    panels[1].plot([r["num_q_heads"] for r in rows],
                   [useful_ops(r["num_q_heads"]) / r["time_us"] * 1e-6 for r in rows], "ko",
                   label="cuda/mla_decode, measured")
    for axes in panels:
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(DOCUMENT.with_name("transposition-roofline.png"), dpi=110)


def main():
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, table in (("counters", counter_table()), ("h20", h20_table())):
        text = re.sub(rf"(<!-- table {name} -->\n).*?(<!-- end -->)",
                      lambda match, table=table: match[1] + table + "\n" + match[2], text,
                      flags=re.DOTALL)
    DOCUMENT.write_text(text, encoding="utf-8")
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plot_issued(plt)
    plot_roofline(plt)


if __name__ == "__main__":
    main()
