#!/usr/bin/env python3
"""Prefill and decode of one model by llama.cpp and by longdecode, side by side.

llama.cpp comes from the PyPI package xllamacpp, in a virtual environment that this script makes
under build/peers. Both run the same GGUF file with the same number of threads, in turn, each turn
in a process of its own; the fastest of the turns counts, because other processes on the machine
only ever slow a turn down.

    benchmarks/peers/llama_cpp.py -m models/SmolLM2-135M-Instruct.Q4_1.gguf --json -

prints rows {engine, method, test, depth, tokens, tok_s, threads, load}: test "tg" is decode after
`depth` tokens, "pp" is prefill. `load` is the machine's load when the turns began.
"""
import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "xllamacpp"

# Runs in the virtual environment: one server, one request per depth. Tokens are given as ids, so
# that both engines see as many.
PEER = r"""
import json, sys
import xllamacpp
spec = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path = spec["model"]
params.n_ctx = max(spec["depths"] + [spec["prompt"]]) + spec["gen"] + 64
params.n_parallel = 1
params.n_batch = params.n_ubatch = 512
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = spec["threads"]
params.warmup = True
server = xllamacpp.Server(params)
rows = []
def ask(num_tokens, num_new):
    ids = [1000 + i * 7919 % 30000 for i in range(num_tokens)]
    answer = server.handle_completions({"prompt": ids, "n_predict": num_new, "temperature": 0,
                                        "ignore_eos": True, "cache_prompt": False})
    return (answer if isinstance(answer, dict) else json.loads(answer))["timings"]
for depth in spec["depths"]:
    rows.append({"test": "tg", "depth": depth, "tokens": spec["gen"],
                 "tok_s": ask(max(depth, 1), spec["gen"])["predicted_per_second"]})
rows.append({"test": "pp", "depth": 0, "tokens": spec["prompt"],
             "tok_s": ask(spec["prompt"], 1)["prompt_per_second"]})
print("ROWS " + json.dumps(rows), flush=True)
import os; os._exit(0)
"""


def peer_python():
    """The interpreter of a virtual environment with the package; made on the first call."""
    place = ROOT / "build" / "peers" / "venv"
    python = place / "bin" / "python"
    if not python.exists():
        print(f"making {place}", file=sys.stderr)
        venv.create(place, with_pip=True)
    if subprocess.run([python, "-c", f"import {PACKAGE}"], capture_output=True).returncode != 0:
        print(f"installing {PACKAGE}", file=sys.stderr)
        done = subprocess.run([python, "-m", "pip", "install", "-q", PACKAGE])
        if done.returncode != 0:
            sys.exit(f"error: pip could not install {PACKAGE} into {place}")
    return python


def run_peer(python, options):
    spec = {"model": str(options.model.resolve()), "depths": options.depths,
            "prompt": options.prompt, "gen": options.gen, "threads": options.threads}
    done = subprocess.run([python, "-c", PEER, json.dumps(spec)], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    if not lines:
        sys.exit(f"error: llama.cpp ended with {done.returncode}\n{done.stderr[-2000:]}")
    return [{"engine": "llama.cpp", "method": "dense", **row} for row in json.loads(lines[0][5:])]


def bench_model(options, *arguments):
    command = [options.longdecode, "bench", "model", "-m", options.model, "-r", "1",
               "-t", str(options.threads), "--json", "-", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: longdecode ended with {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def run_ours(options):
    decode = bench_model(options, "-p", "0", "-n", str(options.gen), "--method", "dense,ffd",
                         "-d", ",".join(map(str, options.depths)))
    prefill = bench_model(options, "-p", str(options.prompt), "-n", "0", "--method", "dense")
    return [{"engine": "longdecode", "method": row["method"], "test": row["test"][:2],
             "depth": row["depth"],
             "tokens": options.gen if row["test"].startswith("tg") else options.prompt,
             "tok_s": row["tok_s"]} for row in decode + prefill]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("-m", "--model", type=Path,
                        default=ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("-d", "--depths", type=lambda text: [int(d) for d in text.split(",")],
                        default=[0, 2000, 7000])
    parser.add_argument("-p", "--prompt", type=int, default=2000, help="tokens of prefill")
    parser.add_argument("-n", "--gen", type=int, default=64, help="tokens of decode")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=3, help="turns of each engine")
    parser.add_argument("--longdecode", type=Path, default=ROOT / "build" / "longdecode")
    parser.add_argument("--json", default="-", help="file for the rows; -: stdout")
    options = parser.parse_args()
    for path, what in ((options.model, "the model"), (options.longdecode, "the built command")):
        if not path.exists():
            parser.error(f"{path} ({what}) is missing: `make run` once, or name another")
    return options


def main():
    options = parse_options()
    python = peer_python()
    load = round(os.getloadavg()[0], 1)
    best = {}
    for turn in range(options.repetitions):
        print(f"turn {turn + 1} of {options.repetitions}", file=sys.stderr)
        for row in run_peer(python, options) + run_ours(options):
            key = (row["test"], row["depth"], row["engine"], row["method"])
            if key not in best or best[key]["tok_s"] < row["tok_s"]:
                best[key] = row
    rows = [{**best[key], "threads": options.threads, "load": load} for key in sorted(best)]
    text = json.dumps(rows, indent=1)
    if options.json == "-":
        print(text)
    else:
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
