"""Tensor parallelism: tables from a module's name to the style in which it is split.

In pairs: the first layer of a pair is cut by its outputs (its columns, in the paper's words), the
second by its inputs; what lies between them stays on its rank, and one all-reduce of the second's
output makes it whole. Attention is such a pair, query, key and value being the first, cut between
heads. All else (embeddings, norms, output layer) is on every rank, which compute it alike.

Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053; with the sequence split between the
pairs: Korthikanti et al. 2022, arXiv:2205.05198.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from phalanx.models.options import ModelName, ModelOptions

Table = dict[str, ParallelStyle]

SEQUENCE = 1
"""The dim of activations (N, T, width) along which sequence parallelism cuts."""


def split_layers(module: nn.Module, table: Table, mesh: DeviceMesh) -> None:
    """Replace the parameters that `table` names by this rank's shard, in place. No communication.

    module: whole, or some layers of it: names that it does not have are passed over.
    mesh: of one axis.
    """
    names = {name for name, _ in module.named_modules()}
    present = {name: style for name, style in table.items() if name in names}
    # None: every rank has the whole tensor, and takes its part of it
    parallelize_module(module, mesh, present, src_data_rank=None)


def table_of(name: ModelName, options: ModelOptions, *, sequence_parallel: bool) -> Table:
    """Return the model's table. options: completed. Raises: KeyError for a model without a table
    (see `models.options`)."""
    if name == "mlp":
        return mlp_table()
    if name != "gpt":
        raise KeyError(name)
    assert options.layers is not None, "completed"
    return sequence_table(options.layers) if sequence_parallel else gpt_table(options.layers)


def mlp_table() -> Table:
    """Return the MLP's table. The output layer has ten columns: it is not worth a message."""
    return {"hidden1": ColwiseParallel(), "hidden2": RowwiseParallel()}


def gpt_table(layers: int) -> Table:
    """Return the GPT's table: two all-reduces of (N, T, width) a block forward, and two backward.

    The head stays unsplit: split, it would send more (the gradient of its input) than it saves of a
    vocabulary of bytes.
    """
    table: Table = {}
    for block in _blocks(layers):
        # Made a DTensor once for query, key and value: one sum of their gradients, not three.
        table[f"{block}.attention"] = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)
        )
        table |= _pairs(block, RowwiseParallel())
    return table


def sequence_table(layers: int) -> Table:
    """Return the GPT's table with sequence parallelism.

    The all-reduces become a reduce-scatter and an all-gather: as many bytes; norms and residuals
    are computed on T ÷ ranks positions each, and need as much less memory.
    """
    split, whole = Shard(SEQUENCE), Replicate()
    table: Table = {
        "embedding": PrepareModuleOutput(output_layouts=whole, desired_output_layouts=split)
    }
    for block in _blocks(layers):
        for norm in ("norm1", "norm2"):
            table[f"{block}.{norm}"] = SequenceParallel(use_local_output=True)
        for part in ("attention", "feed_forward"):
            table[f"{block}.{part}"] = PrepareModuleInput(
                input_layouts=(split,), desired_input_layouts=(whole,)
            )
        table |= _pairs(block, RowwiseParallel(output_layouts=split))
    table["norm"] = SequenceParallel(use_local_output=True)
    table["head"] = PrepareModuleInput(
        input_layouts=(split,), desired_input_layouts=(whole,), use_local_output=True
    )
    return table


def _pairs(block: str, second: RowwiseParallel) -> Table:
    firsts = ("attention.query", "attention.key", "attention.value", "feed_forward.expand")
    seconds = ("attention.output", "feed_forward.contract")
    return {
        **{f"{block}.{layer}": ColwiseParallel() for layer in firsts},
        **{f"{block}.{layer}": second for layer in seconds},
    }


def _blocks(layers: int) -> list[str]:
    return [f"block{number}" for number in range(1, layers + 1)]
