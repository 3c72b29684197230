"""A model as a chain of layers, each called on what the one before has made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from phalanx.errors import UserError
from phalanx.models.own_model import run_once
from phalanx.models.user_function import users_code

STAGES = "pipeline_stages"
"""Attribute of a model: names of its layers in the order of the forward pass, with * in them."""
CHAIN_TOLERANCE = 1e-5
"""Largest difference, as a part of the largest output."""


class Chain(nn.Module):
    """Layers called one after the other, under their names in the full model: parameters are named
    alike, and checkpoints fit."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._chained = dict(layers)
        for name, layer in layers.items():
            *path, last = name.split(".")
            place: nn.Module = self
            for part in path:
                if part not in place._modules:
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            place.add_module(last, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._chained.values():
            x = layer(x)
        return x

    def chained_layers(self) -> dict[str, nn.Module]:
        """Return the layers by name, in order. No plain attribute: a layer may be called so."""
        return self._chained


def layers_of(model: nn.Module, stages: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """Return the layers between which a pipeline may cut the model, by name, in order: those that
    `stages` names, else its `pipeline_stages`, or the children of an nn.Sequential.

    Raises: UserError where it has neither, or they are not all of its parameters.
    """
    names = getattr(model, STAGES, None) if stages is None else stages
    if names is not None:
        return _named(model, tuple(map(str, names)))
    if isinstance(model, Chain):
        return model.chained_layers()
    if isinstance(model, nn.Sequential):
        layers = {name: layer for name, layer in model._modules.items() if layer is not None}
        check_shared(layers, "a pipeline")
        return layers
    raise UserError(
        f"{type(model).__name__} cannot be split into stages: make it an nn.Sequential, or give it "
        "`pipeline_stages`, the names of its layers in the order of the forward pass"
    )


def _named(model: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {}
    for pattern in names:
        found = modules_named(model, pattern)
        if not found:
            raise UserError(
                f"pipeline_stages names {pattern}, which {type(model).__name__} does not have; it "
                f"has {', '.join(name for name, _ in model.named_children())}"
            )
        layers |= found
    covered = {id(p) for layer in layers.values() for p in layer.parameters()}
    left = [name for name, p in model.named_parameters() if id(p) not in covered]
    if left:
        raise UserError(
            f"pipeline_stages leaves out {left[0]}: name layers that hold every parameter"
        )
    check_shared(layers, "a pipeline")
    return layers


def modules_named(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """Return the modules whose dotted name has the parts of `pattern`, with * in them."""
    parts = pattern.split(".")
    return {
        name: module
        for name, module in model.named_modules()
        if len(path := name.split(".")) == len(parts) and all(map(fnmatchcase, path, parts))
    }


def check_chain(
    model: nn.Module, layers: Mapping[str, nn.Module], inputs: Tensor, *, is_exact: bool
) -> None:
    """Raise UserError where the layers one after the other are not the model.

    is_exact: their outputs have the same bits, not nearly.
    """
    expected = run_once(model, inputs)
    with users_code("its layers, called one after the other"):
        found = run_once(Chain(layers), inputs)
    if not isinstance(expected, Tensor) or found.shape != expected.shape:
        raise UserError(
            f"its layers, called one after the other, return {_sizes(found)}, but its forward "
            f"{_sizes(expected)}: a pipeline needs the same tensor from both"
        )
    farthest = float((found - expected).abs().max())
    tolerance = 0.0 if is_exact else CHAIN_TOLERANCE
    if not farthest <= tolerance * max(1.0, float(expected.abs().max())):
        raise UserError(
            "its layers, called one after the other, give different outputs from its forward (by "
            f"{farthest:.2g}): move the operations between layers into a layer"
        )


def check_shared(layers: Mapping[str, nn.Module], what: str) -> None:
    """Raise UserError for a parameter of two layers, which `what` treats each by itself."""
    owners: dict[int, str] = {}
    for name, layer in layers.items():
        for key, parameter in layer.named_parameters():
            owner = owners.setdefault(id(parameter), name)
            if owner != name:
                raise UserError(
                    f"{name}.{key} is a parameter of {owner} as well, and {what} would make two "
                    "copies of it: untie them, or use full replicas, such as mpi or shared"
                )


def stage_of(chain: Mapping[str, nn.Module], layers: range) -> Chain:
    """Return some layers of a chain."""
    named = list(chain.items())
    return Chain(dict(named[layer] for layer in layers))


def join_stages(stages: Sequence[Chain]) -> Chain:
    """Return all layers that a rank holds; not to be called when the stages do not follow each
    other."""
    layers = (item for stage in stages for item in stage.chained_layers().items())
    return Chain(dict(layers))


def _sizes(value: object) -> str:
    if isinstance(value, Tensor):
        return " × ".join(map(str, value.shape)) or "one number"
    return f"a {type(value).__name__}"
