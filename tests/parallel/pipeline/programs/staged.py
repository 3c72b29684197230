"""Each rank: the strategy of stages, alone and with the other axes of a mesh, against one process.

Words: meshes; of each, after a slash, a schedule, and `sequence` for sequence parallelism.
"""

import sys
import time

import torch
from pipelines import BATCH, TOLERANCE, Truth, adam, batch, batches, gpt, mlp, sgd
from tests.parallel.stepping import CROSS_ENTROPY, make_step

from phalanx.comm.layout import share_of
from phalanx.comm.world import World
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.models.build import build_model
from phalanx.models.options import ModelOptions
from phalanx.parallel.local_shards import full_tensor
from phalanx.parallel.mesh import parse_mesh
from phalanx.parallel.options import MeshOptions
from phalanx.parallel.pipeline.engine import RECORDED_STEPS
from phalanx.parallel.pipeline.layout import layout_of
from phalanx.parallel.pipeline.staged import Staged
from phalanx.parallel.step import IGNORED, Batch

RULES = {
    adam: OptimizerConfig(name="adam", learning_rate=0.01),
    sgd: OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9),
}


def part_of(strategy: Staged, truth: Truth, step: int) -> Batch:
    inputs, targets = batches(truth.shape)[step]
    share = share_of(strategy.data_rank, strategy.data_size, len(inputs))
    mine = slice(share.start, share.stop) if len(share) else slice(0, 1)
    wanted = targets[mine] if len(share) else torch.full_like(targets[:1], IGNORED)
    return Batch(inputs[mine], wanted, len(share), targets.numel(), step)


def train(word: str, truth: Truth) -> None:
    text, schedule, *options = word.split("/")
    mesh = parse_mesh(text)
    name = "gpt" if truth.make is gpt else "mlp"
    sizes = ModelOptions(width=8, layers=6, heads=2) if name == "gpt" else ModelOptions(width=12)
    micro_batches = min(4, BATCH // mesh.pp) * mesh.pp  # none without a sample
    strategy = Staged(
        World.create(timeout_s=60),
        mesh,
        MeshOptions(sequence_parallel="sequence" in options),
        layout=layout_of(schedule, num_ranks=mesh.pp, micro_batches=micro_batches),
        global_batch_size=BATCH,
    )
    strategy.loss = CROSS_ENTROPY
    seed = 3 + strategy.rank  # every rank takes the weights of rank 0
    strategy.prepare(
        build_model(name, seed=seed, dtype=torch.float64, options=sizes, shape=truth.shape),
        RULES[truth.optimizer],
    )
    losses = []
    for step in range(len(truth.losses)):
        before = strategy.group.traffic.snapshot()
        part = part_of(strategy, truth, step)
        result = make_step(strategy, part)
        losses.append(result.loss_sum if strategy.counts_samples else 0.0)
        if strategy.counts_samples:
            assert result.logits is not None
            assert len(result.logits) == len(part.inputs)
        assert bool(strategy.actions()) == (step + 1 in RECORDED_STEPS)
        if len(batches(truth.shape)[step][0]) == BATCH:
            check_expected(strategy, before)
    rows = strategy.group.gather(losses)
    if rows is not None:
        sums = [sum(column) for column in zip(*rows, strict=True)]
        assert max(abs(a - b) for a, b in zip(sums, truth.losses, strict=True)) < TOLERANCE
    check_prediction(strategy, truth)
    names = dict(truth.model.named_parameters())
    for parameter_name, parameter in strategy.model.named_parameters():
        farthest = (full_tensor(parameter) - names[parameter_name]).abs().max().item()
        assert farthest < TOLERANCE, f"{word}: {parameter_name} is {farthest:.1e} away"
    held = strategy.group.gather([sum(p.numel() for p in strategy.shards)])
    copies = mesh.dp if mesh.tp == 1 else None
    if held is not None and copies is not None:
        total = sum(parameter.numel() for parameter in names.values())
        assert sum(row[0] for row in held) == copies * total
    strategy.close()


def check_prediction(strategy: Staged, truth: Truth) -> None:
    """On the rank that counts: of more samples than a step takes."""
    inputs, _ = batch(77, truth.shape, 3 * BATCH + 1)
    strategy.model.eval()
    with torch.no_grad():
        logits = strategy.predict(inputs)
    strategy.model.train()
    assert logits is not None or not strategy.counts_samples
    if logits is not None:
        assert (logits - truth.model(inputs)).abs().max() < TOLERANCE


def check_expected(strategy: Staged, before: tuple[int, int]) -> None:
    """Bytes counted = bytes of the formula, in each step of a full batch, from the first on."""
    expected = strategy.expected(BATCH)
    assert 0 < expected.bubble < 0.5
    moved = strategy.group.traffic - before
    if expected.sent_bytes is not None:
        assert (moved.sent_bytes, moved.received_bytes) == (
            expected.sent_bytes,
            expected.received_bytes,
        )
        state = strategy.state_bytes()
        total = state.parameters + state.gradients + state.optimizer
        scalars = 8 * len(strategy.optimizer.state)  # how many steps there were, of each
        assert expected.state_bytes <= total <= expected.state_bytes + scalars


def main(*words: str) -> None:
    torch.set_num_threads(1)
    truths = [Truth(gpt, adam), Truth(mlp, sgd)]
    for word in words:
        for truth in truths:
            is_short = (
                word.split("/")[1] in ("gpipe", "1f1b") and parse_mesh(word.split("/")[0]).pp < 4
            )
            is_deep_enough = truth.make is gpt or is_short
            if not is_deep_enough or ("sequence" in word and truth.make is mlp):
                continue
            began = time.perf_counter()
            train(word, truth)
            print(f"{truth.make.__name__} {word}: {time.perf_counter() - began:.2f} s", flush=True)
    print("a rank is done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
