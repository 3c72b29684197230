"""A program's run in a checkpoint: all of it but the tensors of its model and optimizers.

`program.json` has the options of the optimizers' parameter groups, the state of the schedulers and
the program's own state; tensors in these are in `program.safetensors`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from phalanx.checkpoints.checkpoint import load, model_tensors, stored_name
from phalanx.checkpoints.manifest import PROGRAM_FILE
from phalanx.checkpoints.nested import PLAIN, NestedEncoder, check_storable, decode
from phalanx.checkpoints.tensor_file import CheckpointFile, TensorFile, TextFile, read_tensors
from phalanx.errors import UserError
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.optimizer import JointOptimizer, rule_of
from phalanx.parallel.strategy import Strategy

PROGRAM_TENSORS = "program.safetensors"

RATES = ("lr", "initial_lr")
"""Options of a parameter group that a scheduler changes."""
NOT_SAVED = {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}
"""Options of a parameter group that decide how a step is computed: they stay the program's."""


@dataclass(frozen=True)
class WholeModel:
    """A model and its optimizers as the program made them, of which a rank may hold a part."""

    tensors: Mapping[str, Tensor]
    """Tensors without memory, by their names in a checkpoint."""
    groups: Mapping[str, Sequence[Sequence[str]]]
    """Names of the parameters in each group of an optimizer."""

    @classmethod
    def of(cls, model: nn.Module, optimizers: Mapping[str, Optimizer]) -> WholeModel:
        """Return a description of the model before it is divided."""
        names = {id(p): stored_name(name) for name, p in model.named_parameters()}
        return cls(
            {
                name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
                for name, tensor in model_tensors(model).items()
            },
            {
                name: [[names[id(p)] for p in group["params"]] for group in own.param_groups]
                for name, own in optimizers.items()
            },
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors."""
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}


@dataclass(kw_only=True)
class ProgramState:
    """The objects of a program's run that a checkpoint is made of, and fills again."""

    strategy: Strategy
    """Prepared."""
    optimizers: Mapping[str, Optimizer]
    """The program's own, by name; "" is the name of the only one."""
    schedulers: Sequence[LRScheduler]
    whole: WholeModel
    step: int = 0
    """Updates made."""
    values: dict[str, Any] = field(default_factory=dict)
    """`run.state`."""
    drawn: dict[str, Any] = field(default_factory=dict)
    """Last epoch that a sampler has drawn, and the digest of its samples, where there is one."""
    sums: Callable[[], tuple[float, int]] = lambda: (0.0, 0)
    """Returns loss and samples of the epoch so far, over all ranks."""

    @property
    def model(self) -> nn.Module:
        """Model as this rank holds it."""
        return self.strategy.model

    def check(self) -> None:
        """Raise UserError for what a checkpoint could not hold."""
        for name, tensor in model_tensors(self.model).items():
            check_storable(tensor, f"the model's {name}")
        self._encode()

    def files(self) -> list[CheckpointFile]:
        """Return the program's files of a checkpoint; their tensors are the program's own."""
        document, tensors = self._encode()
        text = TextFile(PROGRAM_FILE, json.dumps(document, indent=2))
        return [text, TensorFile.of(PROGRAM_TENSORS, tensors)]

    def _encode(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        if type(self.values) is not dict:
            raise UserError(f"run.state is a dictionary, not a {type(self.values).__name__}")
        encoder = NestedEncoder()
        document = {
            "step": self.step,
            "epoch_sums": self.sums(),
            "optimizers": {
                name: _encode_optimizer(encoder, self.whole.groups[name], name, optimizer)
                for name, optimizer in self.optimizers.items()
            },
            "optimizer_values": self._optimizer_values(),
            "schedulers": [
                {
                    "class": type(scheduler).__name__,
                    "state": encoder.encode(
                        scheduler.state_dict(), f"scheduler[{number}].state_dict()"
                    ),
                }
                for number, scheduler in enumerate(self.schedulers)
            ],
            "extra_state": {
                name: encoder.encode(value, f"model.state_dict()[{name!r}]")
                for name, value in self.model.state_dict().items()
                if not isinstance(value, Tensor)
            },
            "state": encoder.encode(self.values, "run.state"),
            "drawn": self.drawn,
        }
        return document, encoder.tensors

    def _optimizer_values(self) -> dict[str, Any]:
        """Return the numbers in the optimizers' state, by `<parameter>:<quantity>`."""
        values = {}
        for name, quantity, value in self._optimizer_state():
            where = f"optimizer.state of {name}, {quantity!r},"
            if isinstance(value, Tensor):
                check_storable(value, where)
            elif type(value) in PLAIN:
                values[f"{stored_name(name)}:{quantity}"] = value
            else:
                raise UserError(
                    f"{where} is of type {type(value).__name__}, but a checkpoint can only hold "
                    "tensors and numbers of an optimizer: leave out checkpoint_dir, or use another"
                )
        return values

    def _optimizer_state(self) -> Iterator[tuple[str, str, Any]]:
        """Yield parameter, quantity and value, where this rank has all of them."""
        if self.strategy.is_sharded:  # an optimizer of PyTorch's, which has tensors alone
            return
        names: dict[Tensor, str] = {p: name for name, p in self.model.named_parameters()}
        for parameter, state in self.strategy.optimizer.state.items():
            if parameter not in names:
                raise UserError(
                    f"the optimizer keeps state for {parameter!r:.40}, which is not a parameter of "
                    "the model: a checkpoint cannot hold it"
                )
            for quantity, value in state.items():
                yield names[parameter], quantity, value

    def load(self, checkpoint: Path, *, keeps_options: bool = False) -> list[str]:
        """Fill all objects from the checkpoint, and return lines for the user on what did not fit.
        Collective.

        keeps_options: those of the optimizers stay as the program has given them now.
        Raises: UserError when a file is damaged, or optimizers or schedulers are others.
        """
        document = json.loads((checkpoint / PROGRAM_FILE).read_text())
        self._check_classes(checkpoint, document)
        _, messages = load(checkpoint, self.strategy)
        rules = {name: rule_of(optimizer) for name, optimizer in self.optimizers.items()}
        tensors = read_tensors(checkpoint / PROGRAM_TENSORS)
        self._fill(document, tensors, keeps_options=keeps_options)
        self._check_rules(checkpoint, rules)
        return messages

    def fill(self, texts: Mapping[str, str], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Fill all but the tensors of model and optimizers from the content of `files`, by the
        files' names, of a run of the same program."""
        former, sums = dict(self.values), self.sums
        self._fill(json.loads(texts[PROGRAM_FILE]), tensors[PROGRAM_TENSORS])
        self.sums = sums  # the recorder's
        for name, value in self.values.items():
            self.values[name] = _in_place(former.get(name), value)

    def _fill(
        self,
        document: dict[str, Any],
        tensors: Mapping[str, Tensor],
        *,
        keeps_options: bool = False,
    ) -> None:
        self.step = document["step"]
        self.drawn.update(document.get("drawn", {}))
        loss, samples = document.get("epoch_sums", (0.0, 0))
        self.sums = lambda: (loss, samples)
        followed = {id(scheduler.optimizer) for scheduler in self.schedulers}
        for name, stored in document["optimizers"].items():
            optimizer = self.optimizers[name]
            for group, options in zip(optimizer.param_groups, stored["groups"], strict=True):
                values = decode(options["options"], tensors)
                if keeps_options:  # but the rate is where its scheduler has brought it
                    kept = RATES if id(optimizer) in followed else ()
                    values = {option: values[option] for option in kept if option in values}
                _fill(group, values)
        if not self.strategy.is_sharded:
            self._fill_values(document["optimizer_values"])
        for scheduler, stored in zip(self.schedulers, document["schedulers"], strict=True):
            scheduler.load_state_dict(decode(stored["state"], tensors))
        extra = {name: decode(value, tensors) for name, value in document["extra_state"].items()}
        if extra:
            self.model.load_state_dict(extra, strict=False)
        self.values.clear()
        self.values.update(decode(document["state"], tensors))

    def _check_rules(self, checkpoint: Path, rules: Mapping[str, OptimizerConfig | None]) -> None:
        """Raise UserError where a strategy that has made an optimizer of its own, by `rules`,
        would not follow the options that were loaded."""
        own = self.strategy.optimizer
        if isinstance(own, JointOptimizer) or own in self.optimizers.values():
            return
        for name, optimizer in self.optimizers.items():
            before, after = rules[name], rule_of(optimizer)
            if (
                not before
                or not after
                or before != replace(after, learning_rate=before.learning_rate)
            ):
                raise UserError(
                    f"checkpoint {checkpoint}: options of the optimizer changed in that run, but "
                    f"{type(self.strategy).__name__} follows only the learning rate: use "
                    'strategy="mpi"'
                )

    def _fill_values(self, values: Mapping[str, Any]) -> None:
        parameters = {stored_name(name): p for name, p in self.model.named_parameters()}
        state = self.strategy.optimizer.state
        for key, value in values.items():
            name, quantity = key.rsplit(":", 1)
            state[parameters[name]][quantity] = value

    def _check_classes(self, checkpoint: Path, document: dict[str, Any]) -> None:
        """Raise UserError where optimizers, their parameter groups or schedulers are others."""
        there = {
            f"optimizer {name}".strip(): _description(stored["class"], stored["groups"])
            for name, stored in document["optimizers"].items()
        }
        here = {
            f"optimizer {name}".strip(): _description(
                type(optimizer).__name__, _groups(self.whole.groups[name])
            )
            for name, optimizer in self.optimizers.items()
        }
        there["scheduler"] = ", ".join(stored["class"] for stored in document["schedulers"])
        here["scheduler"] = ", ".join(type(scheduler).__name__ for scheduler in self.schedulers)
        for name in {**here, **there}:
            if there.get(name) != here.get(name):
                raise UserError(
                    f"checkpoint {checkpoint} has a different {name}: {there.get(name) or 'none'} "
                    f"there, {here.get(name) or 'none'} here"
                )


def _encode_optimizer(
    encoder: NestedEncoder, names: Sequence[Sequence[str]], name: str, optimizer: Optimizer
) -> dict[str, Any]:
    own = f"optimizer[{name!r}]" if name else "optimizer"
    groups = _groups(names)
    for number, (group, stored) in enumerate(zip(optimizer.param_groups, groups, strict=True)):
        options = {option: value for option, value in group.items() if option not in NOT_SAVED}
        stored["options"] = encoder.encode(options, f"{own}.param_groups[{number}]")
    return {"class": type(optimizer).__name__, "groups": groups}


def _groups(names: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer. names: of the parameters of each."""
    return [{"parameters": [*group]} for group in names]


def _description(kind: str, groups: Sequence[Mapping[str, Any]]) -> str:
    """Describe an optimizer by its class and parameters, which are too many to be listed."""
    held = [group["parameters"] for group in groups]
    shown = " + ".join(
        ", ".join(names if len(names) < 4 else [*names[:2], "…", names[-1]]) for names in held
    )
    return f"{kind} of {sum(map(len, held))} parameters ({shown})"


def _in_place(former: Any, value: Any) -> Any:
    """Return a value, where possible in the containers and tensors of a former one: a program may
    hold these."""
    if type(former) is not type(value):
        return value
    if isinstance(value, dict):
        filled = {key: _in_place(former.get(key), each) for key, each in value.items()}
        former.clear()
        former.update(filled)
        return former
    if isinstance(value, list):
        known = [*former[: len(value)], *[None] * (len(value) - len(former))]
        former[:] = [_in_place(own, each) for own, each in zip(known, value, strict=True)]
        return former
    if isinstance(value, Tensor) and (former.shape, former.dtype) == (value.shape, value.dtype):
        with torch.no_grad():
            return former.copy_(value)
    return value


def _fill(group: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put options into a parameter group; a rate that is a tensor keeps its memory."""
    for name, value in options.items():
        if isinstance(value, Tensor) and isinstance(group.get(name), Tensor):
            group[name].copy_(value)
        else:
            group[name] = value
