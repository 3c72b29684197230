"""Description of a program's run for its records."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.parallel.step import StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.records.schema import Setting
from phalanx.run.loop import LoopOptions


def describe_setting(
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    data: object,
    strategy: Strategy,
    *,
    name: str,
    threads: int,
    loop: LoopOptions,
    step: StepOptions,
    micro_batches: int | None,
    strategy_options: Mapping[str, object],
    seed: int,
) -> Setting:
    """Return everything that decides the run's numbers, in the records' words. name: of the
    strategy."""
    first = next(iter(optimizers.values()))
    options: dict[str, str | int | float | bool] = {
        option: value if isinstance(value, (int, float)) else str(value)
        for option, value in strategy_options.items()
    }
    if micro_batches is not None:
        options["micro_batches"] = micro_batches
    if strategy.num_blocks is not None:
        options["bitwise"] = True
    if strategy.group.num_spares:
        options["spares"] = strategy.group.num_spares
    if step.clip_norm is not None:
        options["clip_norm"] = step.clip_norm
    if step.skips_nonfinite:
        options["bad_gradients"] = "skip"
    if step.autocast is not None:
        options["autocast"] = "bf16"
    dtypes = {str(p.dtype).removeprefix("torch.") for p in model.parameters()}
    return Setting(
        model=_name_of(model),
        dataset=describe_data(data),
        strategy=name,
        ranks=strategy.size - strategy.group.num_spares,
        threads=threads,
        global_batch_size=loop.batch_size,
        epochs=loop.epochs,
        learning_rate=float(first.param_groups[0]["lr"]),
        learning_rate_rule="none",
        optimizer=" + ".join(type(optimizer).__name__ for optimizer in optimizers.values()),
        seed=seed,
        dtype=" ".join(sorted(dtypes)),
        nodes=strategy.group.num_nodes,
        options=options,
    )


def _name_of(model: nn.Module) -> str:
    """Return the class of a model; the program's name where that is a container of PyTorch's, which
    tells nothing."""
    kind = type(model)
    program = Path(sys.argv[0]).stem
    return program if kind.__module__.startswith("torch.") and program else kind.__name__


def describe_data(data: object) -> str:
    """Return what records call the data of a program."""
    is_tensors = isinstance(data, (tuple, list)) and all(isinstance(p, Tensor) for p in data)
    return "tensors" if is_tensors or isinstance(data, Tensor) else type(data).__name__
