"""State that each rank keeps for itself between steps, in a checkpoint: one file per rank.

A compressor keeps a residual, which fits one rank, one number of ranks and one set of buckets. A
run with others begins without it, and reports that. Rank 0 writes all files, from what the other
ranks send.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open
from safetensors.torch import load_file

from phalanx.checkpoints.contents import TensorFile
from phalanx.checkpoints.gathering import Box, GatherPlan, full_tensors, gather_objects
from phalanx.checkpoints.manifest import Manifest, is_rank_state_file, rank_state_file
from phalanx.checkpoints.tensor_file import Spec, in_file_order
from phalanx.comm.group import Group
from phalanx.gradients.reducer import RankLocalState
from phalanx.parallel.strategy import Strategy


class _StateSpec(NamedTuple):
    """A rank's state without its values."""

    words: str
    plan: list[list[int]]
    specs: dict[str, Spec]

    def as_plan(self, rank: int) -> GatherPlan:
        specs = {name: self.specs[name] for name in in_file_order(self.specs)}
        boxes = {
            name: [Box(rank, (0,) * len(spec.shape), spec.shape)] if spec.num_elements else []
            for name, spec in specs.items()
        }
        return GatherPlan(specs, boxes)


def gather_rank_state(strategy: Strategy) -> list[TensorFile]:
    """Return on rank 0 the files of all ranks, to be written or copied in their order; elsewhere,
    and where nothing is kept, none. The others have sent theirs when they return. Collective.
    """
    state = strategy.rank_local_state()
    if state is None:
        return []
    group = strategy.group.checkpoint_group()
    own = _StateSpec(
        state.name, state.plan, {name: Spec.of(tensor) for name, tensor in state.tensors.items()}
    )
    rows = gather_objects(group, own)
    tensors = {name: tensor.contiguous() for name, tensor in state.tensors.items()}
    if strategy.rank == 0:
        return [_file(rank, row, group, tensors) for rank, row in enumerate(rows)]
    for _ in full_tensors(group, own.as_plan(strategy.rank), tensors):
        pass
    return []


def _file(rank: int, row: _StateSpec, group: Group | None, own: dict[str, Any]) -> TensorFile:
    plan = row.as_plan(rank)
    words = {"words": row.words, "plan": json.dumps(row.plan)}
    return TensorFile(rank_state_file(rank), plan.specs, full_tensors(group, plan, own), words)


def load_rank_state(checkpoint: Path, manifest: Manifest, strategy: Strategy) -> str:
    """This rank's part goes into the strategy; after `prepare`. Collective.

    Returns: a line for the user on why it does not fit; empty where it does.
    """
    num_ranks = sum(map(is_rank_state_file, manifest.files))
    if not num_ranks:
        return ""
    name = _metadata(checkpoint / rank_state_file(0))["words"]
    subject = f"what {name} kept in checkpoint {checkpoint}"
    if num_ranks != strategy.size:
        return f"{subject} is forgotten: it is of {num_ranks} ranks, this run has {strategy.size}"
    if not strategy.load_rank_local_state(_read(checkpoint / rank_state_file(strategy.rank))):
        return (
            f"{subject} is forgotten: this run has another --strategy or --compress, or other "
            "buckets"
        )
    return ""


def _read(file: Path) -> RankLocalState:
    metadata = _metadata(file)
    return RankLocalState(metadata["words"], json.loads(metadata["plan"]), load_file(file))


def _metadata(file: Path) -> dict[str, str]:
    with safe_open(file, framework="pt") as opened:
        metadata: dict[str, str] = opened.metadata()
    return metadata
