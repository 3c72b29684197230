"""Collectives of a group of one rank: each output becomes its input."""

from __future__ import annotations

from phalanx.comm import kernels
from phalanx.comm.array_kernels import copy
from phalanx.comm.collective import Collective
from phalanx.comm.dtypes import ReduceOp


def run(collective: Collective) -> None:
    """Execute `collective`, whose group has no other rank."""
    for source, dest in zip(collective.inputs, collective.outputs, strict=True):
        copy(source, dest)
        if collective.divisor != 1.0:
            kernels.reduce_terms([dest], dest, collective.op or ReduceOp.SUM, collective.divisor)
