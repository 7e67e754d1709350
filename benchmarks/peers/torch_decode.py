#!/usr/bin/env python3
"""Decode steps of Llama-3.1-8B shapes with random bf16 weights in PyTorch on a CUDA device: tokens
per second of greedy steps that feed themselves, after a static cache of random keys and values. Rows
have the keys of `longdecode bench model --random-weights llama-3.1-8b --json`.

Two peers: "transformers" (LlamaForCausalLM with StaticCache, sdpa) and "layers" (the same layers
written out, SDPA over the cache as it is, no mask). Each step is replayed as a CUDA Graph where that
can be captured ("graph": "cuda-graph"), else run eagerly ("off").

usage: torch_decode.py OUT.json [PEER:DEPTH ...]     default: layers and transformers at 16384, 131072
"""
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ModuleNotFoundError as error:
    sys.exit(f"{sys.argv[0]}: {error}; needs PyTorch with CUDA, and transformers for that peer")

LAYERS, HIDDEN, Q_HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 32, 4096, 32, 8, 128, 14336, 128256
ROPE_BASE, EPS = 500000.0, 1e-5
STEPS, REPETITIONS, WARM_UP = 256, 3, 3
BOUND_BYTES_PER_S = 4.6e12


def random(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda") / shape[-1] ** 0.5


class Layers:
    """One token at a time; the position is a tensor, so that one graph serves all."""

    def __init__(self, depth):
        self.position = torch.tensor([depth], device="cuda")
        self.first = depth
        room = depth + STEPS + WARM_UP
        self.embedding = torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16, device="cuda")
        self.head = random(VOCAB, HIDDEN)
        self.layers = [{"qkv": random((Q_HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
                        "out": random(HIDDEN, Q_HEADS * HEAD_DIM), "up": random(2 * FFN, HIDDEN),
                        "down": random(HIDDEN, FFN),
                        "k": torch.randn(1, KV_HEADS, room, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
                        "v": torch.randn(1, KV_HEADS, room, HEAD_DIM, dtype=torch.bfloat16, device="cuda")}
                       for _ in range(LAYERS)]
        self.norm = torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda")
        self.frequencies = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2, device="cuda") / HEAD_DIM)
        self.token = torch.zeros(1, dtype=torch.int64, device="cuda")

    def rotate(self, x):
        angle = self.position * self.frequencies
        cos = torch.cat([angle.cos(), angle.cos()]).to(x.dtype)
        sin = torch.cat([-angle.sin(), angle.sin()]).to(x.dtype)
        return x * cos + x.roll(HEAD_DIM // 2, -1) * sin

    def step(self):
        x = self.embedding[self.token]
        for layer in self.layers:
            qkv = F.linear(F.rms_norm(x, (HIDDEN,), self.norm, EPS), layer["qkv"])
            q, k, v = qkv.view(1, -1, 1, HEAD_DIM).split([Q_HEADS, KV_HEADS, KV_HEADS], 1)
            layer["k"].index_copy_(2, self.position, self.rotate(k))
            layer["v"].index_copy_(2, self.position, v)
            o = F.scaled_dot_product_attention(self.rotate(q), layer["k"], layer["v"], enable_gqa=True)
            x = x + F.linear(o.reshape(1, -1), layer["out"])
            gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.norm, EPS), layer["up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        logits = F.linear(F.rms_norm(x, (HIDDEN,), self.norm, EPS), self.head)
        self.token.copy_(logits.argmax(-1))
        self.position.add_(1)

    def rewind(self):
        self.position.fill_(self.first)


class Transformers:
    def __init__(self, depth):
        import transformers
        config = transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
            num_attention_heads=Q_HEADS, num_key_value_heads=KV_HEADS, rms_norm_eps=EPS,
            max_position_embeddings=depth + 4096, tie_word_embeddings=False,
            attn_implementation="sdpa", dtype="bfloat16")
        with torch.device("meta"):
            self.model = transformers.LlamaForCausalLM(config)
        self.model = self.model.to(torch.bfloat16).to_empty(device="cuda").eval()
        for parameter in self.model.parameters():
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
        rotary = self.model.model.rotary_emb
        frequencies = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2, device="cuda") / HEAD_DIM)
        rotary.inv_freq = frequencies.float()
        self.first = depth
        self.cache = transformers.StaticCache(config=config, max_cache_len=depth + STEPS + WARM_UP)
        self.position = torch.tensor([depth], device="cuda")
        self.token = torch.zeros(1, 1, dtype=torch.int64, device="cuda")
        self.cache.early_initialization(1, KV_HEADS, HEAD_DIM, torch.bfloat16, torch.device("cuda"))
        for layer in self.cache.layers:
            layer.keys.normal_()
            layer.values.normal_()
        self.rewind()

    def step(self):
        out = self.model(input_ids=self.token, past_key_values=self.cache, use_cache=True,
                         cache_position=self.position, position_ids=self.position[None])
        self.token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))
        self.position.add_(1)

    def rewind(self):
        self.position.fill_(self.first)
        for layer in self.cache.layers:  # the tokens that it says it holds
            for name in ("cumulative_length", "cumulative_length_int"):
                if hasattr(layer, name):
                    value = getattr(layer, name)
                    if torch.is_tensor(value):
                        value.fill_(self.first)
                    else:
                        setattr(layer, name, self.first)


@torch.inference_mode()
def measure(peer, depth):
    model = {"layers": Layers, "transformers": Transformers}[peer](depth)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            model.step()
    torch.cuda.synchronize()
    model.rewind()
    graph_name, run = "off", model.step
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model.step()
        graph_name, run = "cuda-graph", graph.replay
    except Exception as error:  # what cannot be captured runs eagerly
        print(f"{peer}: no CUDA Graph: {str(error).splitlines()[0]}", file=sys.stderr)
        torch.cuda.synchronize()
    rates = []
    for _ in range(REPETITIONS):
        model.rewind()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            run()
        torch.cuda.synchronize()
        rates.append(STEPS / (time.perf_counter() - start))
    weights = 2 * (LAYERS * HIDDEN * (2 * Q_HEADS * HEAD_DIM + 2 * KV_HEADS * HEAD_DIM + 3 * FFN)
                   + VOCAB * HIDDEN)
    cache = 2 * 2 * LAYERS * KV_HEADS * HEAD_DIM * (depth + STEPS / 2)
    kernel = f"torch {torch.__version__} {peer}"
    if peer == "transformers":
        import transformers
        kernel += f" {transformers.__version__}"
    return {"model": "llama-3.1-8b", "weights": "random", "device": torch.cuda.get_device_name(),
            "method": "dense", "kernel": kernel, "batch": 1, "depth": depth, "test": f"tg{STEPS}",
            "tok_s": statistics.mean(rates), "tok_s_stdev": statistics.stdev(rates),
            "samples_tok_s": rates, "bound_tok_s": BOUND_BYTES_PER_S / (weights + cache),
            "kept_fraction": 1.0, "graph": graph_name}


def main():
    out, *runs = sys.argv[1:]
    rows = []
    for run in runs or ["layers:16384", "layers:131072", "transformers:16384", "transformers:131072"]:
        peer, depth = run.split(":")
        try:
            rows.append(measure(peer, int(depth)))
            print(json.dumps({key: rows[-1][key] for key in ("kernel", "depth", "tok_s", "graph")}))
        except Exception as error:
            print(f"{run}: {type(error).__name__}: {str(error)[:500]}", file=sys.stderr)
        torch.cuda.empty_cache()
        with open(out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
