"""The recipe of a program's run: every option that decides its numbers, as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from phalanx import __version__
from phalanx.checkpoints.checkpoint import model_tensors
from phalanx.checkpoints.find import FoundCheckpoint
from phalanx.checkpoints.manifest import (
    MODEL_FILE,
    OF_THE_PROGRAM,
    TRAINER,
    Manifest,
    OtherRecipeError,
    Value,
    differing_values,
)
from phalanx.checkpoints.nested import NestedEncoder
from phalanx.checkpoints.program import NOT_SAVED
from phalanx.checkpoints.tensor_file import Spec, read_specs, stored_files
from phalanx.errors import UserError

WITHIN_EPOCH = {
    "seed", "length of data", "kind of data", "pack", "preparation", "order of samples"
}  # fmt: skip
"""Options that decide which samples are left of an epoch."""
WITHIN_EPOCH |= {
    name + OF_THE_PROGRAM
    for name in ("seed", "dataset", "data", "train_samples", "shuffle_shards", "damaged")
}  # keys: names of `phalanx train`
LAYERS, ENDS = "text of the model", "digest of the first and last samples"
"""Entries of a recipe that may differ where a run is not bitwise."""
MAX_NAMED = 3
"""Tensors that an error lists."""


def program_manifest(
    model: nn.Module,
    optimizers: Mapping[str, Optimizer],
    schedulers: Sequence[LRScheduler],
    *,
    data: str,
    num_samples: int,
    batch_size: int,
    seed: int,
    options: Mapping[str, Value],
    program: Mapping[str, Value] = MappingProxyType({}),
) -> Manifest:
    """Return the manifest of a program's run at its first step, before anything is resumed.

    data: name of the data. num_samples: of an epoch; 0: unknown. batch_size: of the global batch.
    options: of the run that decide its numbers, besides these. program: the program's own.
    """
    tensors = model_tensors(model)
    return Manifest(
        phalanx=__version__,
        model=type(getattr(model, "_orig_mod", model)).__name__,
        dtype=", ".join(sorted({str(p.dtype)[6:] for p in model.parameters()})),
        optimizer=", ".join(
            f"{name}: {type(own).__name__}" if name else type(own).__name__
            for name, own in optimizers.items()
        ),
        dataset=data,
        seed=seed,
        global_batch_size=batch_size,
        epochs_done=0,
        train_samples=num_samples,
        options={"tensors": len(tensors), "elements": sum(t.numel() for t in tensors.values())},
        recipe={**options, **_starting_options(optimizers), **_starting_schedule(schedulers)},
        program=dict(program),
    )


def check_program(
    found: FoundCheckpoint,
    wanted: Manifest,
    tensors: Mapping[str, Tensor],
    *,
    allow_changes: bool | Sequence[str] = False,
) -> list[str]:
    """Raise UserError where a checkpoint is no program's, or of another model or recipe; return
    lines on layers and samples that are others in the same shapes, which bitwise runs refuse.

    wanted: of the run that resumes. tensors: of its whole model, by their names there.
    allow_changes: of everything but the samples that are left of an epoch; or of these of the
        program's own options.
    Cost: the header of the model's file is read.
    """
    manifest, path = found.manifest, found.path
    if manifest.program.get(TRAINER) != wanted.program.get(TRAINER):
        trainer = manifest.program.get(TRAINER) or "a program"
        raise UserError(
            f"checkpoint {path} was written by {trainer}, for its model {manifest.model}: a "
            "program can resume only from checkpoints of phalanx.start"
        )
    check_model(path, manifest.model, wanted.model, tensors)
    allowed = () if isinstance(allow_changes, bool) else allow_changes
    within = WITHIN_EPOCH if manifest.samples_seen else ()
    differing = {
        name: words
        for name, words in differing_values(_values_of(manifest), _values_of(wanted)).items()
        if name in within or not (allow_changes is True or name[: -len(OF_THE_PROGRAM)] in allowed)
    }
    if differing:
        mend = "allow it by checkpoints=Checkpoints(allow_changes=True)"
        if differing.keys() & within:
            mend = "resume from a checkpoint of full epochs: this one would leave other samples"
        raise OtherRecipeError(
            f"checkpoint {path} has a different recipe: {'; '.join(differing.values())}\nuse the "
            f"values of the checkpoint, or {mend}",
            differing,
        )
    changed = _differing_contents(manifest.recipe, wanted.recipe)
    if changed and wanted.recipe.get("bitwise") and allow_changes is not True:
        raise UserError(
            f"checkpoint {path}: {'; '.join(changed)}: a bitwise run resumes only with the same "
            "model and data: use these, or start anew in another checkpoint_dir"
        )
    return [f"the run no longer matches checkpoint {path}: {line}" for line in changed]


def is_same_recipe(one: Manifest, other: Manifest) -> bool:
    """Return whether the numbers of two runs are decided by the same options."""
    return not differing_values(_values_of(one), _values_of(other))


def _differing_contents(there: Mapping[str, Value], here: Mapping[str, Value]) -> list[str]:
    """Return what differs in spite of equal shapes; older checkpoints do not say."""
    lines = []
    texts = [str(recipe.get(LAYERS) or "").splitlines() for recipe in (there, here)]
    if all(texts) and texts[0] != texts[1]:
        before, after = (
            next((line.strip() for line in own if line not in other), "other layers")
            for own, other in (texts, texts[::-1])
        )
        lines.append(f"the model has {before} there, {after} here")
    ends = [recipe.get(ENDS) for recipe in (there, here)]
    if all(ends) and ends[0] != ends[1]:
        lines.append("the first or the last sample of the data differs")
    return lines


def differing_tensors(there: Mapping[str, Spec], here: Mapping[str, Spec]) -> str:
    """Return which tensors differ, the first few by name; empty: none.

    there: of the checkpoint. here: of the run's model.
    """
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    lines = [
        f"{name} is {_described(there.get(name), here.get(name))} there, "
        f"{_described(here.get(name), there.get(name))} here"
        for name in names[:MAX_NAMED]
    ]
    more = len(names) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")


def _described(spec: Spec | None, other: Spec | None) -> str:
    """Return the shape of a tensor, and its type where the other's is another."""
    if spec is None:
        return "missing"
    is_same_type = other is None or other.code == spec.code
    return f"{spec.shape}" if is_same_type else f"{spec.shape} {spec.code}"


def check_model(checkpoint: Path, there: str, here: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError where the checkpoint's tensors are not those of the model.

    there, here: names of the models' classes.
    """
    specs = {name: Spec.of(tensor) for name, tensor in tensors.items()}
    if differing := differing_tensors(read_specs(*stored_files(checkpoint, MODEL_FILE)), specs):
        classes = f" ({there} there, {here} here)" if there != here else ""
        raise UserError(f"checkpoint {checkpoint} has a different model{classes}: {differing}")


def _values_of(manifest: Manifest) -> dict[str, Value]:
    """Return all that decides the numbers of a run: of `phalanx train` its own options do."""
    program = {f"{name}{OF_THE_PROGRAM}": value for name, value in manifest.program.items()}
    if TRAINER in manifest.program:
        return program
    return {
        "batch_size": manifest.global_batch_size,
        "seed": manifest.seed,
        "length of data": manifest.train_samples,
        **{name: value for name, value in manifest.recipe.items() if name not in (LAYERS, ENDS)},
        **program,
    }


def _starting_options(optimizers: Mapping[str, Optimizer]) -> dict[str, Value]:
    """Return the options of all parameter groups, by names that tell these apart."""
    values = {}
    for name, optimizer in optimizers.items():
        groups = optimizer.param_groups
        for number, group in enumerate(groups):
            owner = f"optimizer[{name!r}]" if name else "optimizer"
            place = f"{owner}.param_groups[{number}]" if len(groups) > 1 or name else "optimizer"
            for option, value in group.items():
                if option not in NOT_SAVED:
                    values[f"{place} {option}"] = _plain(value)
    return values


def _starting_schedule(schedulers: Sequence[LRScheduler]) -> dict[str, Value]:
    values = {}
    for number, scheduler in enumerate(schedulers):
        place = f"scheduler[{number}]" if len(schedulers) > 1 else "scheduler"
        for name, value in scheduler.state_dict().items():
            values[f"{place} {name}"] = _plain(value)
    return values


def _plain(value: Any) -> Value:
    """Return a value that a manifest's JSON gives back as it is."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str | int | float | None):
        return value
    try:
        return json.dumps(NestedEncoder().encode(value, ""))
    except UserError:
        return type(value).__name__
