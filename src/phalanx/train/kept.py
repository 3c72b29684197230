"""What every rank keeps for itself from step to step, in a checkpoint: a file a rank.

A compressor keeps what it did not send. That fits the rank, the number of ranks and the buckets
that it comes from; a run of others begins with nothing kept, and says so. All ranks write, into the
folder of the checkpoint, which all of them must see.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from phalanx.parallel.step import OwnState
from phalanx.parallel.strategy import Strategy
from phalanx.train.checkpoint import make_empty, unwritable
from phalanx.train.manifest import Manifest, folder_of, is_kept, kept_file


def write_kept(folder: Path, strategy: Strategy, manifest: Manifest) -> Path | None:
    """A hidden folder beside the checkpoint's that holds the file of every rank; None where nothing
    is kept. Collective.

    Raises: UserError when this rank's file cannot be written.
    """
    state = strategy.own_state()
    if state is None:
        return None
    target = folder / folder_of(manifest)
    hidden = folder / f".{target.name}.kept"
    try:
        make_empty(hidden, strategy)
        words = {"words": state.words, "plan": json.dumps(state.plan)}
        save_file(state.tensors, hidden / kept_file(strategy.rank), metadata=words)
        strategy.barrier()
    except Exception as error:
        raise unwritable(target, error) from error
    return hidden


def load_kept(checkpoint: Path, manifest: Manifest, strategy: Strategy) -> str:
    """This rank's part goes into the strategy; after `prepare`. Collective.

    Returns: where it does not fit why not, in a line for the user; else nothing.
    """
    num_ranks = sum(map(is_kept, manifest.files))
    if not num_ranks:
        return ""
    told = f"what {_said(checkpoint / kept_file(0))['words']} kept in checkpoint {checkpoint}"
    if num_ranks != strategy.size:
        return f"{told} is forgotten: it is of {num_ranks} ranks, this run has {strategy.size}"
    if not strategy.go_on_from(_read(checkpoint / kept_file(strategy.rank))):
        return (
            f"{told} is forgotten: this run has another --strategy or --compress, or other buckets"
        )
    return ""


def _read(file: Path) -> OwnState:
    said = _said(file)
    return OwnState(said["words"], json.loads(said["plan"]), load_file(file))


def _said(file: Path) -> dict[str, str]:
    with safe_open(file, framework="pt") as opened:
        said: dict[str, str] = opened.metadata()
    return said
