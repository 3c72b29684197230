"""Tensor parallelism for the GPT: a style for each module, by name.

Query, key, value and the wider layer are cut by their outputs, between heads; the layers behind
them by their inputs, whose partial sums one all-reduce makes whole. Embeddings, norms and head are
on every rank.

Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053; with the sequence split between the
pairs: Korthikanti et al. 2022, arXiv:2205.05198.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

Styles = dict[str, ParallelStyle]

SEQUENCE = 1
"""The dim of activations (N, T, width) along which sequence parallelism cuts."""


def gpt_styles(blocks: Sequence[str]) -> Styles:
    """Return the styles: two all-reduces of (N, T, width) a block forward, and two backward.

    The head stays unsplit: split, it would send more (the gradient of its input) than it saves of a
    vocabulary of bytes.
    """
    styles: Styles = {}
    for block in blocks:
        # Made a DTensor once for query, key and value: one sum of their gradients, not three.
        styles[f"{block}.attention"] = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)
        )
        styles |= _pairs(block, RowwiseParallel())
    return styles


def sequence_styles(blocks: Sequence[str]) -> Styles:
    """Return the styles with sequence parallelism.

    The all-reduces become a reduce-scatter and an all-gather: as many bytes; norms and residuals
    are computed on T ÷ ranks positions each, and need as much less memory.
    """
    split, whole = Shard(SEQUENCE), Replicate()
    styles: Styles = {
        "embedding": PrepareModuleOutput(output_layouts=whole, desired_output_layouts=split)
    }
    for block in blocks:
        for norm in ("norm1", "norm2"):
            styles[f"{block}.{norm}"] = SequenceParallel(use_local_output=True)
        for part in ("attention", "feed_forward"):
            styles[f"{block}.{part}"] = PrepareModuleInput(
                input_layouts=(split,), desired_input_layouts=(whole,)
            )
        styles |= _pairs(block, RowwiseParallel(output_layouts=split))
    styles["norm"] = SequenceParallel(use_local_output=True)
    styles["head"] = PrepareModuleInput(
        input_layouts=(split,), desired_input_layouts=(whole,), use_local_output=True
    )
    return styles


def _pairs(block: str, second: RowwiseParallel) -> Styles:
    firsts = ("attention.query", "attention.key", "attention.value", "feed_forward.expand")
    seconds = ("attention.output", "feed_forward.contract")
    return {
        **{f"{block}.{layer}": ColwiseParallel() for layer in firsts},
        **{f"{block}.{layer}": second for layer in seconds},
    }
