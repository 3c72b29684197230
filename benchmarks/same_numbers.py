"""Final parameters of every strategy, on 1 to 4 ranks, against those of one process.

    python benchmarks/same_numbers.py                       # some 20 minutes on two quiet cores
    python benchmarks/same_numbers.py --models mlp --ranks 2
    python benchmarks/same_numbers.py --ends whole resumed survived

Each case is a run of `phalanx train` in float64: two epochs of 144 images or texts, with Adam,
clipped if the strategy can. Reported: the beginning of the SHA-256 of the parameters in the last
checkpoint, and the largest distance to one process; for refused cases the reason. Run it before and
after a change of how strategies are made: if the arithmetic stays, so does each hash.

`resumed` resumes from the checkpoint of the first epoch. `survived` is for bitwise strategies that
survive (of `zero` stage 1): rank 1 is killed in its eighth micro-batch, and its peers continue. Its
reference is one bitwise process, with the same cuts.
Results go to runs/benchmarks/same_numbers.json.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from harness import save

STRATEGIES = {
    "sequential": "--strategy sequential",
    "mpi": "--strategy mpi",
    "shared": "--strategy shared",
    "gloo": "--strategy gloo",
    "zero 1": "--strategy zero --zero-stage 1",
    "zero 2": "--strategy zero --zero-stage 2",
    "zero 3": "--strategy zero --zero-stage 3",
    "local": "--strategy local --local-steps 2",
    "server": "--strategy server",
    "tensor": "--strategy tensor",
    "pipeline": "--strategy pipeline --micro-batches 4",
    "dp=2,tp=2": "--mesh dp=2,tp=2",
    "dp=2,pp=2": "--mesh pp=2,dp=2 --micro-batches 4",
    "bitwise mpi": "--strategy mpi --bitwise",
    "bitwise shared": "--strategy shared --bitwise",
    "bitwise zero": "--strategy zero --bitwise --zero-stage 1",
    "bitwise pipeline": "--strategy pipeline --bitwise",
}
UNCLIPPED = ("shared", "server")
SURVIVING = ("bitwise mpi", "bitwise shared", "bitwise zero")
MODELS = {
    "mlp": "--model mlp --dataset digits --batch-size 48",
    "cnn": "--model cnn --dataset digits --batch-size 48",
    "gpt": "--model gpt --dataset text --width 32 --layers 4 --heads 4 --batch-size 16",
}
RANKS = (1, 2, 3, 4)
COMMON = "--epochs 2 --train-samples 144 --validation-samples 32 --dtype float64"
ENDS = ("whole", "resumed", "survived")
MORTAL = Path(__file__).parent / "models" / "mortal.py"


def trained(
    model: str, strategy: str, ranks: int, end: str, *, clips: bool
) -> dict[str, Tensor] | str:
    """Return the parameters of a run, or why it is refused."""
    words = f"{MODELS[model]} {STRATEGIES[strategy]} {COMMON}".split()
    words += ["--clip-norm", "1"] if clips else []
    words += ["--ranks", str(ranks)] if strategy != "sequential" else []
    if end == "survived":
        words[words.index("--model") + 1] = f"{MORTAL}:make_{model}"
        words += ["--survive"] if ranks > 1 else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saved = folder / "saved"
        for target in (saved, folder / "resumed") if end == "resumed" else (saved,):
            places = ["--run-dir", f"{target}-run", "--checkpoint-dir", str(target)]
            places += ["--resume", str(saved / "epoch-0001")] if target != saved else []
            program = [sys.executable, "-m", "phalanx", "train", *words, *places]
            done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=300)
            if done.returncode:
                return done.stderr.strip().splitlines()[-1].removeprefix("phalanx: ")
        if end == "survived" and ranks > 1 and "died" not in done.stderr + done.stdout:
            return "nobody died"
        return load_file(target / "epoch-0002" / "model.safetensors")


def applies(strategy: str, ranks: int, end: str) -> bool:
    if end == "survived":
        return strategy in SURVIVING and ranks > 1
    return not ((strategy == "sequential" and ranks > 1) or ("," in strategy and ranks < 4))


def sha256_of(parameters: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(name.encode() + parameters[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def measure(model: str, strategies: list[str], ranks: list[int], end: str) -> dict[str, Any]:
    """Return and print the results of a model's runs."""
    found: dict[str, Any] = {}
    alone = "bitwise mpi" if end == "survived" else "sequential"
    kind = end if end == "survived" else "whole"
    truths = {clips: trained(model, alone, 1, kind, clips=clips) for clips in (True, False)}
    for strategy in strategies:
        for count in (count for count in ranks if applies(strategy, count, end)):
            clips = strategy not in UNCLIPPED
            result, truth = trained(model, strategy, count, end, clips=clips), truths[clips]
            case = f"{model}, {strategy}, {count} rank{'s' * (count > 1)}, {end}"
            if isinstance(result, str) or isinstance(truth, str):
                found[case] = {"refused": result if isinstance(result, str) else truth}
                print(f"{case}: {found[case]['refused']}"[:100], flush=True)
                continue
            distances = [(result[n] - truth[n]).abs().max() for n in truth]
            distance, digest = float(torch.stack(distances).max()), sha256_of(result)
            found[case] = {"sha256": digest, "distance": distance}
            print(f"{case}: {digest[:12]}, {distance:.1e} from one process", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="parameters of every strategy")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=[*STRATEGIES])
    parser.add_argument("--ranks", nargs="+", type=int, choices=RANKS, default=[*RANKS])
    parser.add_argument("--ends", nargs="+", choices=ENDS, default=["whole"])
    asked = parser.parse_args()
    cases: dict[str, Any] = {}
    for end in asked.ends:
        for model in asked.models:
            cases |= measure(model, asked.strategies, asked.ranks, end)
    save(__file__, cases=cases)


if __name__ == "__main__":
    main()
