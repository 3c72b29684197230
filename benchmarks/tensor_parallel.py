"""Tokens per second of Transformers' tensor parallelism on CPUs: backend mpi, Gloo, one process.

    python benchmarks/tensor_parallel.py                  # 2 ranks, 74 million parameters, 5 rounds
    python benchmarks/tensor_parallel.py --ranks 4 --rounds 3

A Llama of 12 layers generates 40 tokens after a prompt of 32, greedily, in float32, a thread per
rank. Each round starts one process, then the ranks of each backend by torchrun; a process generates
twice, and the second time counts. All must generate the same tokens. Medians and raw values go to
runs/benchmarks/tensor_parallel.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from harness import save

PROMPT, NEW_TOKENS = 32, 40
LAYERS = 12
SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
BACKENDS = ("one process", "mpi", "gloo")
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}


def make_model(folder: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=LAYERS, vocab_size=32_000, **SIZES)
    model = LlamaForCausalLM(config)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million parameters", flush=True)
    model.save_pretrained(folder)


def generate(backend: str, folder: str) -> None:
    """Generate on this rank; rank 0 prints seconds and tokens."""
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM

    distributed: Any = importlib.import_module("transformers.distributed")
    torch.set_num_threads(1)
    options: dict[str, Any] = {}
    if backend in ("mpi", "gloo"):
        dist.init_process_group(backend)
        options["distributed_config"] = distributed.DistributedConfig(tp_plan="auto")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    prompt = torch.arange(1, PROMPT + 1)[None]
    for _ in range(2):
        began = time.perf_counter()
        tokens = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        seconds = time.perf_counter() - began
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps({"seconds": seconds, "tokens": tokens[0, PROMPT:].tolist()}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def measure(backend: str, ranks: int, folder: str) -> dict[str, Any]:
    starter = [sys.executable]
    if backend != "one process":
        starter += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*starter, __file__, "--generate", backend, folder],
        capture_output=True,
        text=True,
        env={**os.environ, **QUIET, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        sys.exit(f"{backend} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Tensor parallelism of Transformers on CPUs.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder)
        expected = None
        for number in range(args.rounds):
            for backend in BACKENDS:
                found = measure(backend, args.ranks, folder)
                expected = expected or found["tokens"]
                if found["tokens"] != expected:
                    sys.exit(f"{backend} generated other tokens than one process")
                rates[backend].append(NEW_TOKENS / found["seconds"])
            shown = ", ".join(f"{name} {values[-1]:.1f}" for name, values in rates.items())
            print(f"round {number + 1} of {args.rounds}, tokens/s: {shown}", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, value in medians.items():
        print(
            f"{name:12} {value:6.1f} tokens/s, {value / medians['one process']:.2f} of one process"
        )
    print(f"mpi over gloo: {medians['mpi'] / medians['gloo']:.2f}")
    save(__file__, ranks=args.ranks, tokens_per_s=rates, medians=medians)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--generate"]:
        generate(sys.argv[2], sys.argv[3])
    else:
        main()
