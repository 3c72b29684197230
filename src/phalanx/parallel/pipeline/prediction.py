"""Forward-only pass through a pipeline, of any number of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.parallel.pipeline.boundaries import Boundary
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.stages import ready


class Predictor:
    """Forward passes of one rank's stages.

    Micro-batches follow one another, so all ranks work at the same time; the last may be smaller,
    since no buffers are preallocated for it.
    """

    def __init__(
        self,
        layout: PipelineLayout,
        modules: Mapping[int, nn.Module],
        boundaries: Sequence[Boundary],
        piece_size: int,
        group: dist.ProcessGroup,
    ) -> None:
        self._layout, self._modules, self._boundaries = layout, modules, boundaries
        self._piece_size, self._group = piece_size, group
        self._rank = dist.get_rank(group)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor | None:
        """inputs: (n, …), the same on every rank. Collective."""
        pieces = inputs.split(self._piece_size)
        kept: dict[int, Tensor] = {}  # by piece: what the next stage of this rank goes on from
        outputs: dict[int, Tensor] = {}
        sends: list[tuple[dist.Work, Tensor]] = []
        last = self._layout.num_stages - 1
        for stage, number in forward_order(self._layout, self._rank, len(pieces)):
            if stage == 0:
                given = pieces[number]
            elif self._layout.rank_of(stage - 1) == self._rank:
                given = kept.pop(number)
            else:
                given = self._receive(stage, len(pieces[number]))
            made: Tensor = self._modules[stage](given)
            if stage == last:
                outputs[number] = made
            elif self._layout.rank_of(stage + 1) == self._rank:
                kept[number] = made
            else:
                sends.append(self._send(ready(made).contiguous(), stage))
        for work, _ in sends:
            work.wait()
        if self._layout.last_rank != self._rank:
            return None
        return torch.cat([outputs[number] for number in range(len(pieces))])

    def _receive(self, stage: int, num_samples: int) -> Tensor:
        given = self._boundaries[stage].of(num_samples)
        dist.recv(given, group=self._group, group_src=self._layout.rank_of(stage - 1))
        return given

    def _send(self, made: Tensor, stage: int) -> tuple[dist.Work, Tensor]:
        """Send; the returned tensor must stay alive until the send is complete."""
        peer = self._layout.rank_of(stage + 1)
        work = dist.isend(made, group=self._group, group_dst=peer)
        assert work is not None, "this rank is in the group"
        return work, made


def forward_order(layout: PipelineLayout, rank: int, num_pieces: int) -> Iterator[tuple[int, int]]:
    """Yield (stage, micro-batch) in the order in which `rank` does them. Pure.

    As many micro-batches as there are ranks go through each of its stages before the next, which
    keeps every rank busy. In this order no rank waits for what comes after it.
    """
    for start in range(0, num_pieces, layout.num_ranks):
        for stage in layout.stages_of(rank):
            for piece in range(start, min(start + layout.num_ranks, num_pieces)):
                yield stage, piece
