#!/usr/bin/env python3
"""Times dense GQA decode of PyTorch's SDPA (backends cudnn and flash) on a CUDA device, as
benchmarks/gpu_timer does: (a graph of 8 x [read-only flush, op] - a graph of 8 x [flush]) / 8, median
of 7. Rows have the keys of `longdecode bench attention --json`.

usage: sdpa_gpu.py [BATCHxKV_LEN ...] --json OUT.json
"""
import argparse
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

Q_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
FLUSH_BYTES = 384 << 20
GRAPH_CALLS, SAMPLES = 8, 7
DEFAULT_SHAPES = ["1x4096", "1x16384", "1x65536", "1x131072", "1x262144", "4x65536", "16x16384"]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


class GraphTimer:
    def __init__(self):
        self.flush_buffer = torch.ones(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.sink = torch.zeros((), dtype=torch.int64, device="cuda")
        self.flush_graph = self.capture(lambda: None)

    def flush(self):
        torch.sum(self.flush_buffer, dim=0, dtype=torch.int64, out=self.sink)

    def capture(self, op):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # library handles and workspaces before the capture
            for _ in range(2):
                self.flush()
                op()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_CALLS):
                self.flush()
                op()
        return graph

    @staticmethod
    def replay_us(graph):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / GRAPH_CALLS

    def sample_us(self, op):
        graph = self.capture(op)
        self.replay_us(graph)
        times = [self.replay_us(graph) - self.replay_us(self.flush_graph) for _ in range(SAMPLES)]
        return statistics.median(times), min(times), max(times)


def measure(timer, method, batch, kv_len):
    def tensor(heads, length):
        return torch.randn(batch, heads, length, HEAD_DIM, dtype=torch.bfloat16, device="cuda")

    q, k, v = tensor(Q_HEADS, 1), tensor(KV_HEADS, kv_len), tensor(KV_HEADS, kv_len)

    def op():
        with sdpa_kernel(BACKENDS[method]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    median, least, most = timer.sample_us(op)
    necessary = 2 * batch * (kv_len * KV_HEADS + Q_HEADS) * HEAD_DIM * 2
    return {"op": "gqa", "method": method, "device": "cuda",
            "device_name": torch.cuda.get_device_name(),
            "kernel": f"torch {torch.__version__} sdpa, cudnn {torch.backends.cudnn.version()}",
            "batch": batch, "query_len": 1, "kv_len": kv_len, "num_q_heads": Q_HEADS,
            "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "dtype": "bf16", "page_size": None,
            "kept_fraction": 1.0, "timing": "graph", "l2": "cold", "time_us": median,
            "time_us_min": least, "time_us_max": most, "necessary_bytes": necessary}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shapes", nargs="*", default=DEFAULT_SHAPES)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    timer = GraphTimer()
    rows = []
    for shape in options.shapes:
        batch, kv_len = map(int, shape.split("x"))
        for method in BACKENDS:
            try:
                row = measure(timer, method, batch, kv_len)
            except RuntimeError as error:
                print(f"{method} {shape}: not served: {str(error).splitlines()[0]}", flush=True)
                continue
            rows.append(row)
            print(f"{method:6} batch {batch:2} kv_len {kv_len:6}: {row['time_us']:8.2f} us", flush=True)
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
