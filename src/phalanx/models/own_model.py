"""A module that the user's own function makes."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.errors import UserError
from phalanx.models.options import DataShape, ModelOptions
from phalanx.models.user_function import FunctionName, load, users_code


def build_own_model(
    text: str, *, seed: int, dtype: torch.dtype, options: ModelOptions, shape: DataShape
) -> nn.Module:
    """Call the function `text` names with what it takes of the data's shape and the options, by
    name; the generators of PyTorch, NumPy and Python are seeded for it, and then as before.

    Raises: UserError when it fails, asks for what is not known, or returns no module to be trained.
    """
    name = FunctionName.parse("--model", text)
    make = load(name)
    given = _arguments(name, make, {**known_arguments(shape), "seed": seed}, options)
    with _seeded(seed), users_code(name):
        model = make(**given)
        _check(name, model)
        if any(nn.parameter.is_lazy(tensor) for tensor in model.parameters()):
            run_once(model, example_inputs(shape, torch.get_default_dtype()))
        model.to(dtype)
    return model  # type: ignore[no-any-return]


def known_arguments(shape: DataShape) -> dict[str, object]:
    """Return what a function may ask for by name: of images channels and image_size (height,
    width), of text context and vocabulary; of both inputs and num_classes; of quantities inputs and
    targets, the shapes of a sample's."""
    known: dict[str, object] = {
        "shape": shape, "inputs": shape.inputs, "num_classes": shape.num_classes
    }  # fmt: skip
    if shape.targets is not None:
        return {"shape": shape, "inputs": shape.inputs, "targets": shape.targets}
    if shape.is_text:
        return known | {"context": shape.inputs[0], "vocabulary": shape.num_classes}
    if shape.is_image:
        known |= {"channels": shape.inputs[0], "image_size": shape.inputs[1:]}
    return known


def _arguments(
    name: FunctionName,
    make: Callable[..., Any],
    known: Mapping[str, object],
    options: ModelOptions,
) -> dict[str, object]:
    """Return the keyword arguments of `make`. Options that were given must be taken."""
    chosen = options.given
    parameters = inspect.signature(make).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    plain = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names = {parameter.name for parameter in plain}
    for key, value in chosen.items():
        if key not in names and not takes_all:
            raise UserError(
                f"--{key} {value}: {name.function} of {name.place} takes no `{key}`: leave it out"
            )
    given = {key: value for key, value in known.items() if key in names} | chosen
    missing = [p.name for p in plain if p.default is p.empty and p.name not in given]
    if missing:
        raise UserError(
            f"{name} needs `{missing[0]}`, which Phalanx does not pass: give it a default, or use "
            f"{', '.join(known)}, or width, layers or heads together with that option"
        )
    return given


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed all generators within, and put them back as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # the user's may use it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _check(name: FunctionName, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned a {type(model).__name__}: it must return an nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"{name} returned a module without parameters to train")
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise UserError(f"{name}: {key} is on {tensor.device}: leave the module on the CPU")
        if tensor.is_complex():
            raise UserError(f"{name}: {key} is complex: phalanx train computes with real numbers")


EXAMPLES = 3
"""Samples with which a model is tried."""


def example_inputs(shape: DataShape, dtype: torch.dtype) -> Tensor:
    """Return inputs (EXAMPLES, …) at random, the same each time; tokens where the data is text."""
    generator, sizes = torch.Generator().manual_seed(0), (EXAMPLES, *shape.inputs)
    if shape.is_text:
        return torch.randint(shape.num_classes, sizes, generator=generator)
    return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)


def example_targets(shape: DataShape, dtype: torch.dtype) -> Tensor:
    """Return targets of such inputs: the first class, or quantities of zero."""
    if shape.targets is None:
        return torch.zeros(EXAMPLES, *(shape.inputs if shape.is_text else ()), dtype=torch.int64)
    return torch.zeros(
        EXAMPLES, *shape.targets, dtype=dtype if shape.has_fractions else torch.int64
    )


def run_once(model: nn.Module, inputs: Tensor) -> Any:
    """Return the outputs for `inputs` in evaluation mode, without gradients; random generators stay
    as they are."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return model(inputs)
    finally:
        model.train(was_training)


def tensors_in(outputs: Any) -> Iterator[Tensor]:
    """Yield the tensors of outputs: of one, or of tuples, lists and mappings of them."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        yield from tensors_in(list(outputs.values()))
    elif isinstance(outputs, list | tuple):
        for value in outputs:
            yield from tensors_in(value)


def fits_classes(outputs: Any, shape: DataShape) -> bool:
    """Return whether outputs are logits of the data's classes, one row a target."""
    if not isinstance(outputs, Tensor) or not outputs.dim() or shape.targets is not None:
        return False
    targets = (len(outputs), *(shape.inputs if shape.is_text else ()))
    return tuple(outputs.shape[:-1]) == targets and outputs.shape[-1] >= shape.num_classes
