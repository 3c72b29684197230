"""State that each rank keeps for itself between steps, in a checkpoint: one file per rank.

A compressor keeps a residual, which fits one rank, one number of ranks and one set of buckets. A
run with others begins without it, and reports that. Each rank writes its file where all share the
folder; else rank 0 writes all of them, from what the others send.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from phalanx.checkpoints.gathering import gather_objects, receive_tensors, send_tensors
from phalanx.checkpoints.manifest import Manifest, is_rank_state_file, rank_state_file
from phalanx.checkpoints.tensor_file import Spec, TensorFile, in_file_order
from phalanx.gradients.reducer import RankLocalState
from phalanx.parallel.strategy import Strategy

BUCKETS = "plan"
"""Key of a rank's file for the parameters' numbers in each bucket, as in every file so far."""


class _StateSpec(NamedTuple):
    """A rank's state without its values."""

    words: str
    bucket_members: list[list[int]]
    specs: dict[str, Spec]
    """Specs of the tensors, in the order of the file."""

    def file(self, rank: int, tensors: Iterable[Tensor]) -> TensorFile:
        """Return the file of a rank. tensors: in the order of the file."""
        words = {"words": self.words, BUCKETS: json.dumps(self.bucket_members)}
        return TensorFile(rank_state_file(rank), self.specs, tensors, words)


def gather_rank_state(strategy: Strategy, *, is_shared: bool) -> list[TensorFile]:
    """Return this rank's file where all ranks share the folder; else on rank 0 the files of all
    ranks, to be written or copied in their order, and elsewhere none, as soon as it is sent.
    Where nothing is kept, there are none. Collective.
    """
    state = strategy.rank_local_state()
    if state is None:
        return []
    group, rank = strategy.group.checkpoint_group(), strategy.rank
    specs = {name: Spec.of(tensor) for name, tensor in state.tensors.items()}
    specs = {name: specs[name] for name in in_file_order(specs)}
    own = _StateSpec(state.name, state.bucket_members, specs)
    file = own.file(rank, [state.tensors[name] for name in specs])
    if is_shared or group is None:
        return [file]
    rows = list(gather_objects(group, own))
    if rank:
        send_tensors(group, specs, [state.tensors[name].contiguous() for name in specs])
        return []
    return [file] + [
        row.file(peer, receive_tensors(group, row.specs, peer))
        for peer, row in enumerate(rows)
        if peer
    ]


def load_rank_state(checkpoint: Path, manifest: Manifest, strategy: Strategy) -> str:
    """This rank's part goes into the strategy; after `prepare`. Collective.

    Returns: a line for the user on why it does not fit; empty where it does.
    """
    num_ranks = sum(map(is_rank_state_file, manifest.files))
    if not num_ranks:
        return ""
    name = _metadata(checkpoint / rank_state_file(0))["words"]
    subject = f"the state of {name} in checkpoint {checkpoint}"
    if num_ranks != strategy.size:
        return (
            f"{subject} is dropped: it is from {num_ranks} ranks, but this run has {strategy.size}"
        )
    if not strategy.load_rank_local_state(_read(checkpoint / rank_state_file(strategy.rank))):
        return f"{subject} is dropped: --strategy, --compress or buckets differ"
    return ""


def _read(file: Path) -> RankLocalState:
    metadata = _metadata(file)
    return RankLocalState(metadata["words"], json.loads(metadata[BUCKETS]), load_file(file))


def _metadata(file: Path) -> dict[str, str]:
    with safe_open(file, framework="pt") as opened:
        metadata: dict[str, str] = opened.metadata()
    return metadata
