#!/usr/bin/env python3
"""Writes the tables and plots of docs/formats/key-format-study.md from the study's JSON.

The tables go between the marks `<!-- table NAME -->` and `<!-- end -->` of the document; the plots
need matplotlib (a virtual environment will do) and go beside it.
"""
import argparse
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "formats" / "key-format-study.md"
RESULT = ROOT / "benchmarks" / "results" / "cpu" / "key-format-study.json"
PERPLEXITY = ROOT / "benchmarks" / "results" / "cpu" / "perplexity.json"
PRODUCT = "range, midrange (product)"
# No margin.
PLAIN = {"page_size": 128, "tile": 16, "margin_sigmas": 0.0, "delta": 5.0}
SELECTION = {
    "kept_fraction": "kept", "bytes_of_dense": "bytes", "tile_agreement": "agreement",
    "tiles_wrongly_dropped": "wrongly dropped", "dropped_mass": "dropped mass",
    "rows_over_1_percent": "rows over 1%", "output_error": "output error",
    "needles_kept": "needles", "weak_needles_kept": "weak needles"}


class Study:
    def __init__(self, path):
        self.data = json.loads(path.read_text(encoding="utf-8"))

    def rows(self, table, **wanted):
        columns = self.data[table]["columns"]
        rows = [dict(zip(columns, row)) for row in self.data[table]["rows"]]
        return [row for row in rows if all(row[key] == value for key, value in wanted.items())]

    def grids(self):
        return list(dict.fromkeys(row["grid"] for row in self.rows("selections")))

    def texts(self):
        return [pathlib.Path(path).name for path in self.data["texts"]]

    def synthetic(self):
        sources = dict.fromkeys(row["source"] for row in self.rows("selections"))
        return [name for name in sources if name.startswith("synthetic")]


def number(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(number, row)) + " |" for row in rows]
    return "\n".join(lines)


def selection_table(keys, rows):
    header = [*keys, *SELECTION.values()]
    return markdown(header, [[row[key] for key in [*keys.values(), *SELECTION]] for row in rows])


def table_facts(study):
    data = study.data
    return markdown(["what", "value"], [
        ["model", data["model_name"]], ["texts", ", ".join(study.texts())],
        ["tokens of each text", data["context_len"]],
        ["query positions of each text", data["num_positions"]], ["seed", data["seed"]],
        ["version, commit", f'{data["version"]}, {data["commit"]}']])


def table_scores(study):
    rows = []
    for grid in study.grids():
        for page_size in (64, 128):
            row = [grid, page_size]
            for layers in ("0", "1+"):
                found = study.rows("scores", source="texts", layers=layers, grid=grid,
                                   page_size=page_size)[0]
                row += [found["scan_error_rel"], found["scan_error_nats"],
                        found["stored_error_nats"]]
            rows.append(row)
    return markdown(["grid", "page", "layer 0: scan error / deviation", "nats", "stored error, nats",
                     "layers 1+: scan error / deviation", "nats", "stored error, nats"], rows)


def table_selections(study, layers):
    return selection_table({"grid": "grid", "page": "page_size"}, study.rows(
        "selections", source="texts", layers=layers, tile=16, margin_sigmas=0.0, delta=5.0))


def table_rules(study):
    return selection_table(
        {"page": "page_size", "tile": "tile", "margin": "margin_sigmas", "delta": "delta"},
        study.rows("selections", source="texts", layers="all", grid=PRODUCT))


def table_exact(study):
    rows = []
    for layers in ("0", "1+"):
        for tile in (16, 32):
            for delta in (5.0, 7.0):
                row = study.rows("selections", source="texts", layers=layers, grid=PRODUCT,
                                 page_size=128, tile=tile, margin_sigmas=0.0, delta=delta)[0]
                rows.append([layers, tile, delta, row["exact_kept_fraction"],
                             row["exact_dropped_mass"], row["kept_fraction"],
                             row["dropped_mass"]])
    return markdown(["layers", "tile", "delta", "exact: kept", "exact: dropped mass",
                     "2-bit scan: kept", "2-bit scan: dropped mass"], rows)


def table_synthetic(study):
    rows = [row for source in study.synthetic()
            for row in study.rows("selections", source=source, **PLAIN)]
    return selection_table({"keys": "source", "grid": "grid"}, rows)


def curve(study, grid, page_size, tile, delta):
    rows = study.rows("selections", source="texts", layers="all", grid=grid, page_size=page_size,
                      tile=tile, delta=delta)
    return sorted((row["bytes_of_dense"], row["dropped_mass"]) for row in rows)


def bytes_at(points, mass):
    """Bytes of a curve (bytes, dropped mass) at a dropped mass: straight lines between margins."""
    for (bytes_a, mass_a), (bytes_b, mass_b) in zip(points, points[1:]):
        if mass_b <= mass <= mass_a:
            return bytes_a + (bytes_b - bytes_a) * (mass_a - mass) / (mass_a - mass_b)
    return None


def table_equal(study):
    wanted = study.rows("selections", source="texts", layers="all", grid=PRODUCT,
                        **{**PLAIN, "margin_sigmas": 0.5})[0]["dropped_mass"]
    rows = []
    for grid in study.grids():
        for page_size in (64, 128):
            for tile in (16, 32):
                cell = bytes_at(curve(study, grid, page_size, tile, 5.0), wanted)
                rows.append([grid, page_size, tile, "-" if cell is None else cell])
    rows.sort(key=lambda row: 9.0 if row[3] == "-" else row[3])
    return (f"Dropped mass {number(wanted)}: the product's with page 128, tile 16, delta 5, margin "
            "0.5.\n\n" + markdown(["grid", "page", "tile", "bytes"], rows))


def table_pseudo_max(study):
    rows = []
    for source in [*study.texts(), "texts"]:
        for layers in ("0", "1+"):
            row = study.rows("pseudo_max", source=source, layers=layers)[0]
            rows.append([source, layers, row["from_first_token"], row["from_other_sinks"],
                         row["from_recent"], row["is_max"], row["over_5_nats"], row["excess_p50"],
                         row["excess_p90"], row["excess_p99"], row["excess_max"]])
    return markdown(["source", "layers", "first token", "other sinks", "recent", "is the maximum",
                     "more than 5 nats below", "p50", "p90", "p99", "largest"], rows)


def table_perplexity(_):
    """The objects that `longdecode perplexity --json` wrote, in one array."""
    runs = json.loads(PERPLEXITY.read_text(encoding="utf-8"))
    dense = {run["file"]: run for run in runs if run["method"] == "dense"}
    rows = []
    for run in runs:
        change = 100 * (run["perplexity"] / dense[run["file"]]["perplexity"] - 1)
        is_dense = run["method"] == "dense"
        layers = ", ".join(map(str, run["dense_layers"])) or "none"
        rows.append([pathlib.Path(run["file"]).name, run["method"],
                     *(["", "", ""] if is_dense else
                       [run["delta"] or "inf", run["margin_sigmas"], layers]),
                     f'{run["perplexity"]:.3f}', "" if is_dense else f"{change:+.2f}%",
                     run["kept_fraction"]])
    return markdown(["text", "method", "delta", "margin", "dense layers", "perplexity", "of dense",
                     "kept"], rows)


def table_layers(study):
    """Layer by layer: what delta 5 drops without and with a margin."""
    rows = []
    for index in dict.fromkeys(row["layers"] for row in study.rows("layer_pseudo_max")):
        cells = [index]
        for margin, delta in ((0.0, 5.0), (0.5, 5.0), (0.0, 6.0)):
            row = study.rows("layer_selections", layers=index, grid=PRODUCT, page_size=128, tile=16,
                             margin_sigmas=margin, delta=delta)[0]
            cells += [row["kept_fraction"], row["dropped_mass"]]
        exact = study.rows("layer_selections", layers=index, grid=PRODUCT, **PLAIN)[0]
        rows.append([*cells, exact["exact_dropped_mass"]])
    return markdown(["layer", "delta 5: kept", "dropped mass", "margin 0.5: kept", "dropped mass",
                     "delta 6: kept", "dropped mass", "exact scores, delta 5: dropped mass"], rows)


TABLES = {
    "perplexity": table_perplexity, "layers": table_layers,
    "facts": table_facts, "scores": table_scores, "rules": table_rules, "exact": table_exact,
    "selections-0": lambda study: table_selections(study, "0"),
    "selections-1": lambda study: table_selections(study, "1+"),
    "synthetic": table_synthetic, "equal": table_equal, "pseudo-max": table_pseudo_max}


def plot_trade_off(study, pyplot):
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True)
    for axis, page_size in zip(axes, (64, 128)):
        for index, grid in enumerate(study.grids()):
            for delta, style in ((5.0, "o-"), (7.0, "x:")):
                points = curve(study, grid, page_size, 16, delta)
                axis.plot(*zip(*points), style, color=f"C{index}", markersize=4,
                          label=grid if delta == 5.0 else None)
        axis.set(title=f"page {page_size}, tile 16, all layers", yscale="log",
                 xlabel="bytes read / dense")
    axes[0].set_ylabel("dropped softmax mass (mean)")
    axes[1].legend(fontsize=7, loc="lower left", title="o delta 5, x delta 7; margin 0, 0.5, 1, 2")
    return figure, []


def plot_layers(study, pyplot):
    figure, axes = pyplot.subplots(3, 1, figsize=(11, 9), sharex=True)
    layers = []
    for grid in (PRODUCT, "1.0 dev, midrange, residual x2", "least error, residual x4"):
        rows = study.rows("layer_selections", grid=grid, **PLAIN)
        scores = study.rows("layer_scores", grid=grid, page_size=128)
        layers = [int(row["layers"]) for row in rows]
        axes[0].plot(layers, [row["scan_error_nats"] for row in scores], "o-", label=grid)
        axes[1].plot(layers, [row["kept_fraction"] for row in rows], "o-", label=grid)
        axes[2].plot(layers, [row["dropped_mass"] for row in rows], "o-", label=grid)
    exact = study.rows("layer_selections", grid=PRODUCT, **PLAIN)
    axes[1].plot(layers, [row["exact_kept_fraction"] for row in exact], "k--", label="exact scores")
    axes[2].plot(layers, [row["exact_dropped_mass"] for row in exact], "k--", label="exact scores")
    for axis, label in zip(axes, ("scan error, nats", "kept_fraction", "dropped mass")):
        axis.set_ylabel(label)
    axes[2].set(xlabel="layer", yscale="log")
    axes[0].set_title("page 128, tile 16, delta 5, no margin")
    return figure, axes


def plot_pseudo_max(study, pyplot):
    rows = study.rows("layer_pseudo_max")
    layers = [int(row["layers"]) for row in rows]
    figure, axes = pyplot.subplots(2, 1, figsize=(11, 7), sharex=True)
    below = [0.0] * len(rows)
    for key, label in (("from_first_token", "first token"), ("from_other_sinks", "other sinks"),
                       ("from_recent", "recent")):
        shares = [row[key] for row in rows]
        axes[0].bar(layers, shares, bottom=below, label=label)
        below = [a + b for a, b in zip(below, shares)]
    axes[0].set(ylabel="who gave the pseudo-max", title="query rows of both texts")
    for key in ("excess_p50", "excess_p90", "excess_p99", "excess_max"):
        axes[1].plot(layers, [row[key] for row in rows], "o-", label=key.removeprefix("excess_"))
    axes[1].axhline(5.0, color="k", linestyle="--", linewidth=1)
    axes[1].set(ylabel="true maximum - pseudo-max, nats", xlabel="layer")
    return figure, axes


PLOTS = {"trade-off": plot_trade_off, "layers": plot_layers, "pseudo-max": plot_pseudo_max}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, default=RESULT)
    parser.add_argument("--document", type=pathlib.Path, default=DOCUMENT)
    parser.add_argument("--no-plots", action="store_true", help="the tables only")
    options = parser.parse_args()
    study = Study(options.json)
    text = options.document.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        mark = re.escape(f"<!-- table {name} -->")
        table = f"<!-- table {name} -->\n{make(study)}\n<!-- end -->"
        text, count = re.subn(mark + r".*?<!-- end -->", lambda _, t=table: t, text,
                              flags=re.DOTALL)
        if count != 1:
            parser.error(f"{options.document} has {count} places for table {name}; 1 is needed")
    options.document.write_text(text, encoding="utf-8")
    if options.no_plots:
        return
    import matplotlib  # only the plots need it
    matplotlib.use("Agg")
    from matplotlib import pyplot
    for name, plot in PLOTS.items():
        figure, with_legend = plot(study, pyplot)
        for axis in figure.axes:
            axis.grid(alpha=0.3)
        for axis in with_legend:
            axis.legend(fontsize=8, loc="best" if name == "layers" else "upper left")
        figure.savefig(options.document.with_name(f"key-format-study-{name}.png"), dpi=110,
                       bbox_inches="tight")


if __name__ == "__main__":
    main()
