"""Each rank: checkpoints of every layout of these ranks, and each layout goes on from the one that
another has written.

Words: a folder, then `cross`, or `die` (rank 1 is killed while it sends its parts), or `again`.
In the latter two every rank has a folder of its own, which no other sees. With `-files` the
tensors are in many files, which all ranks write into a folder that they share, `cross-files` by
threads; then rank 1 is killed while it writes one.
"""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "parallel" / "programs"))

import torch
from on_mesh import ADAM, Case, compare
from tests.parallel.stepping import CROSS_ENTROPY, make_step

from phalanx.checkpoints import gathering, sharded, tensor_file
from phalanx.checkpoints.checkpoint import load_checkpoint, model_tensors
from phalanx.checkpoints.manifest import Manifest
from phalanx.checkpoints.sharded import load_sharded
from phalanx.checkpoints.tensor_file import read_tensors, stored_files
from phalanx.checkpoints.writer import CheckpointWriter
from phalanx.comm.world import World
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.models.options import DataShape, ModelOptions
from phalanx.parallel.local_shards import full_tensor
from phalanx.parallel.mesh import parse_mesh
from phalanx.parallel.on_mesh import OnMesh
from phalanx.parallel.pipeline.layout import layout_of
from phalanx.parallel.pipeline.staged import Staged
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.zero import ZeroOne

GPT = Case(
    model="gpt",
    options=ModelOptions(width=24, layers=2, heads=12),
    shape=DataShape(inputs=(12,), num_classes=13),
)
MLP = Case(model="mlp", options=ModelOptions(width=26), shape=DataShape(inputs=(1, 5, 5)))
PLAIN = OptimizerConfig(name="sgd", learning_rate=0.05)  # an optimizer without state
LAYOUTS = ["dp=2,tp=2", "pp=2,dp=2", "zero", "tp=4", "shard=2,tp=2", "shard=4", "dp=4"]
STEPS = 2  # before the checkpoint, and after it


def make(word: str, case: Case) -> Strategy:
    if word == "sequential":
        return Replicas(RunGroup())
    world = World.create(timeout_s=60)
    if word == "zero":
        return ZeroOne(world)
    mesh = parse_mesh(word)
    if mesh.pp == 1:
        return OnMesh(world, mesh)
    layout = layout_of("1f1b", num_ranks=mesh.pp, micro_batches=2, stages_per_rank=None)
    staged = Staged(
        world,
        mesh,
        layout=layout,
        global_batch_size=11,
    )
    staged.loss = CROSS_ENTROPY
    return staged


def train(strategy: Strategy, case: Case, first: int) -> None:
    for step in range(first, first + STEPS):
        make_step(strategy, case.batch(step, strategy.data_rank, strategy.data_size))


def save(folder: Path, strategy: Strategy, case: Case, epoch: int = 1) -> Path:
    manifest = Manifest(
        phalanx="0",
        model=case.model,
        dtype="float64",
        optimizer="adam",
        dataset="text",
        seed=3,
        global_batch_size=11,
        epochs_done=epoch,
    )
    writer = CheckpointWriter(
        folder=folder,
        strategy=strategy,
        manifest=manifest,
        shapes={n: tuple(tensor.shape) for n, tensor in model_tensors(case.build(3)).items()},
        in_background=sys.argv[2] == "cross-files",
    )
    writer.begin()
    writer.save((epoch, 0))
    writer.close()
    strategy.group.barrier()
    return folder / f"epoch-{epoch:04d}"


def load(checkpoint: Path, strategy: Strategy) -> None:
    if strategy.is_sharded:
        load_sharded(checkpoint, strategy)
    else:
        load_checkpoint(checkpoint, strategy.model, strategy.optimizer)


def same_files(found: Path, expected: Path, tolerance: float) -> None:
    """The same tensors by the same names, of the same types."""
    for name in ("model", "optimizer"):
        files = (stored_files(path, f"{name}.safetensors") for path in (found, expected))
        mine, theirs = (read_tensors(*each) for each in files)
        assert mine.keys() == theirs.keys(), f"{found}: {sorted(mine)}, not {sorted(theirs)}"
        for key, tensor in theirs.items():
            assert mine[key].dtype == tensor.dtype and mine[key].shape == tensor.shape, key
            assert (mine[key] - tensor).abs().max() <= tolerance, f"{found}: {key}"


def cross(folder: Path, case: Case, rule: OptimizerConfig, layouts: list[str], rank: int) -> None:
    alone = make("sequential", case)
    alone.prepare(case.build(3), rule)
    train(alone, case, 0)
    before = folder / f"sequential-{rank}"
    before = expected = save(before, alone, case)
    train(alone, case, STEPS)
    truth = {name: full_tensor(p).clone() for name, p in alone.model.named_parameters()}
    for word in layouts:
        strategy = make(word, case)
        strategy.prepare(case.build(3), rule)
        train(strategy, case, 0)
        written = save(folder / word, strategy, case)
        strategy.close()
        strategy = make(word, case)
        strategy.prepare(case.build(99), rule)
        load(before, strategy)
        copied = save(folder / word, strategy, case, 2)
        if rank == 0:
            same_files(written, expected, 1e-10)
            same_files(copied, before, 0.0)
        train(strategy, case, STEPS)
        found = {name: full_tensor(p) for name, p in strategy.model.named_parameters()}
        compare(found, {name: truth[name] for name in found}, f"{word} from {before}")
        strategy.close()
        before = written
        if rank == 0:
            print(f"{case.model} on {word}", flush=True)
    resumed = make("sequential", case)
    resumed.prepare(case.build(99), rule)
    load(before, resumed)
    train(resumed, case, STEPS)
    found = {name: full_tensor(p) for name, p in resumed.model.named_parameters()}
    compare(found, truth, f"sequential from {before}")


def telling(*arguments: Any) -> dict[str, torch.Tensor]:
    """The tensors of a file, as rank 0 asks for them."""
    print("a tensor is on its way to the file", flush=True)
    return gathering.assemble(*arguments)


def die_at_the_second_call(module: Any, name: str) -> None:
    function, calls = getattr(module, name), itertools.count()

    def dying(*arguments: Any) -> Any:
        if next(calls):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    setattr(module, name, dying)


def main(folder: Path, what: str) -> None:
    torch.set_num_threads(1)
    world = World.create(timeout_s=30)
    rank, size = world.rank, world.size
    world.close()
    if what.endswith("-files"):
        tensor_file.FILE_BYTES = 3000
    if what.startswith("cross"):
        cross(folder / "gpt", GPT, ADAM, LAYOUTS, rank)
        cross(folder / "mlp", MLP, PLAIN, ["shard=2,tp=2"], rank)
    else:
        if not what.endswith("-files"):
            (folder / str(rank)).mkdir(exist_ok=True)
            os.chdir(folder / str(rank))
            folder = Path()
        folder /= "saved"
        strategy = make("shard=2", MLP)
        strategy.prepare(MLP.build(3), ADAM)
        train(strategy, MLP, 0)
        if what.startswith("die"):
            save(folder, strategy, MLP)
            sharded.assemble = telling
            if rank == 1 and what.endswith("-files"):
                die_at_the_second_call(tensor_file, "write_stream")
            elif rank == 1:
                die_at_the_second_call(gathering, "_bytes")
        save(folder, strategy, MLP, 2)
        strategy.close()
    print(f"\nrank {rank} of {size} is done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
