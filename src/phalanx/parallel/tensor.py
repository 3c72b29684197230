"""Tensor parallelism by a plan: the style in which each module is split, by its name.

In pairs: the first layer of a pair is cut by its outputs (its columns, in the paper's words), the
second by its inputs (rows); what lies between them stays on its rank, and one all-reduce of the
second's output makes it whole. All else is on every rank, which compute it alike. The plan is the
model's (`parallelize_plan`) or the caller's.

Source: Shoeybi et al. 2019, "Megatron-LM", arXiv:1909.08053.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from phalanx.errors import UserError
from phalanx.models.own_model import tensors_in
from phalanx.models.splits import SplitTraffic
from phalanx.models.user_function import users_code
from phalanx.parallel.local_shards import full_tensor
from phalanx.parallel.pipeline.chain import modules_named

PARALLELIZE_PLAN = "parallelize_plan"
"""Attribute of a model: a mapping from names of modules, with * in them, to styles; or a method
that returns it, and may take `sequence_parallel`."""

STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "column": ColwiseParallel,
    "row": RowwiseParallel,
    "sequence": lambda: SequenceParallel(use_local_output=True),
}
"""Styles by the words that a plan may use; others are PyTorch's own objects."""

Table = dict[str, ParallelStyle]

TOLERANCE = 1e-3
"""Largest difference, as a part of the largest output: much more than rounding, and much less than
that of a wrong plan."""


def tensor_plan_of(
    model: nn.Module, given: object = None, *, sequence_parallel: bool = False
) -> Table:
    """Return the style of each module that is split, by its full name.

    given: plan of the caller, in place of the model's: a mapping, or a function that returns it.
    Raises: UserError where there is none, or it does not fit the model.
    """
    plan = getattr(model, PARALLELIZE_PLAN, None) if given is None else given
    if plan is None:
        raise UserError(
            "the model has no plan for tensor parallelism: give its class `parallelize_plan`, a "
            'mapping from names of its layers to "column" or "row", or give '
            "--tensor-plan file.py:plan"
        )
    if callable(plan):
        with users_code("its plan for tensor parallelism"):
            plan = _call(plan, sequence_parallel)
    elif sequence_parallel:
        raise _no_sequences()
    if not isinstance(plan, Mapping) or not plan:
        raise UserError(
            f"a plan for tensor parallelism is a mapping from names of modules to styles, not "
            f"{plan!r:.60}"
        )
    table: Table = {}
    for pattern, style in plan.items():
        found = modules_named(model, str(pattern))
        if not found:
            known = ", ".join(name for name, each in model.named_modules() if _is_leaf(each))
            raise UserError(
                f"the plan for tensor parallelism names {pattern}, which the model does not have; "
                f"it has {known[:300]}"
            )
        table |= {name: _style(name, module, style) for name, module in found.items()}
    return table


def _call(plan: Callable[..., object], sequence_parallel: bool) -> object:
    if "sequence_parallel" in inspect.signature(plan).parameters:
        return plan(sequence_parallel=sequence_parallel)
    if sequence_parallel:
        raise _no_sequences()
    return plan()


def _no_sequences() -> UserError:
    return UserError(
        "--sequence-parallel: the plan for tensor parallelism does not split sequences: make the "
        "plan a function that takes `sequence_parallel`, or leave the option out"
    )


def _is_leaf(module: nn.Module) -> bool:
    return not any(True for _ in module.children())


def _style(name: str, module: nn.Module, style: Any) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    if style not in STYLES:
        raise UserError(
            f"the plan for tensor parallelism has {style!r:.40} for {name}: write "
            f"{', '.join(STYLES)}, or a style of torch.distributed.tensor.parallel"
        )
    if style != "sequence" and not isinstance(module, nn.Linear | nn.Embedding):
        raise UserError(
            f"the plan for tensor parallelism splits {name} by {style}s, which is a "
            f"{type(module).__name__}: only nn.Linear and nn.Embedding can be split"
        )
    return STYLES[style]()


def check_sizes(model: nn.Module, table: Table, ranks: int) -> None:
    """Raise UserError where the dim that is cut does not divide by the ranks of axis tp."""
    for name, style in table.items():
        module = model.get_submodule(name)
        if not isinstance(module, nn.Linear) or type(style) not in (
            ColwiseParallel,
            RowwiseParallel,
        ):
            continue
        is_column = isinstance(style, ColwiseParallel)
        number, what = (
            (module.out_features, "outputs") if is_column else (module.in_features, "inputs")
        )
        if number % ranks:
            raise UserError(
                f"{name} has {number} {what}, which is not divisible by tp={ranks}: every rank "
                "needs an equal share"
            )


def split_layers(module: nn.Module, table: Table, mesh: DeviceMesh) -> None:
    """Replace the parameters that `table` names by this rank's shard, in place. No communication.

    module: whole, or some layers of it: names that it does not have are passed over.
    mesh: of one axis.
    """
    names = {name for name, _ in module.named_modules()}
    present = {name: style for name, style in table.items() if name in names}
    # None: every rank has the whole tensor, and takes its part of it
    parallelize_module(module, mesh, present, src_data_rank=None)


def check_same_outputs(before: object, after: object) -> None:
    """Raise UserError where outputs of the split model are not those of the whole one.

    before, after: of tensors, as models return them.
    """
    for full, parts in zip(tensors_in(before), tensors_in(after), strict=True):
        farthest = _distance(full, parts)
        if not farthest <= TOLERANCE * max(1.0, float(full.abs().max())):
            raise UserError(
                "the model's outputs change when it is split by its plan for tensor parallelism "
                f"(by {farthest:.2g}): a layer split by columns must be followed by one split by "
                "rows, and operations between them must treat each feature, or head, separately, "
                "and draw no random numbers (no dropout)"
            )


class FirstOutputs:
    """Compares the first outputs of a split model, in a program's loop, with those of the whole.

    Cost: a copy of the model until then, its forward pass, and one gathering of all parameters.
    """

    def __init__(self, model: nn.Module, autocast: torch.dtype | None) -> None:
        """model: whole yet. autocast: of its calls."""
        self._whole: nn.Module | None = deepcopy(model)
        self._autocast, self._random = autocast, torch.empty(0)
        self._handles: list[Any] = []

    def follow(self, model: nn.Module) -> None:
        """Compare the outputs of the next call that a backward pass may follow: an evaluation shows
        nothing of dropout. model: split."""
        self._handles = [
            model.register_forward_pre_hook(self._begin, prepend=True),
            model.register_forward_hook(self._compare, with_kwargs=True),
        ]

    def check(self) -> None:
        """Raises: UserError where the model was not called yet."""
        if self._whole is not None:
            raise UserError(
                "the first call of run.model checks the plan for tensor parallelism, but the loop "
                "has only called parts of it: call run.model itself"
            )

    def _begin(self, *_: object) -> None:
        self._random = torch.get_rng_state()

    def _compare(
        self, model: nn.Module, words: tuple[Any, ...], named: dict[str, Any], outputs: Any
    ) -> None:
        if not torch.is_grad_enabled():
            return
        whole, self._whole = self._whole, None
        for handle in self._handles:
            handle.remove()
        assert whole is not None, "compared once"
        whole.train(model.training)
        of_now = {n: full_tensor(v) for n, v in model.state_dict().items() if isinstance(v, Tensor)}
        whole.load_state_dict(of_now, strict=False)  # a checkpoint may have been loaded since
        dtype = self._autocast
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.set_rng_state(self._random)
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                before = whole(*words, **named)
        check_same_outputs(before, outputs)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max()) if one.shape == other.shape else math.inf


def split_traffic(model: nn.Module, *, sequence_parallel: bool) -> SplitTraffic | None:
    """Return the messages of the model's own plan; None where nobody has counted them."""
    count = getattr(model, "split_traffic", None)
    traffic = None if count is None else count(sequence_parallel=sequence_parallel)
    return traffic if isinstance(traffic, SplitTraffic) else None


def pairs_of_children(children: Iterable[str], table: Table) -> list[list[str]]:
    """Return the children in order, those together between which tensors are split: from one that
    is cut by its outputs to the next that is cut by its inputs."""
    groups: list[list[str]] = []
    is_open = False
    for child in children:
        if is_open:
            groups[-1].append(child)
        else:
            groups.append([child])
        style = table.get(child)
        if isinstance(style, ColwiseParallel):
            is_open = True
        elif isinstance(style, RowwiseParallel):
            is_open = False
    return groups
