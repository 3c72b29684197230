"""Workload profiles in YAML files, of Phalanx or of the user."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec

from phalanx.errors import UserError
from phalanx.records.io import Profile

LARGEST_BYTES = 20_000
PROFILES = ("unet3d", "resnet50", "cosmoflow", "bert")
_FOLDER = files("phalanx.bench.io") / "profiles"


def read_profile(name: str) -> Profile:
    """Return a profile: one of PROFILES, or a YAML file of the same form.

    Raises: UserError naming the fault.
    """
    text = profile_text(name)
    try:
        profile = msgspec.yaml.decode(text.encode(), type=Profile)
    except RecursionError as error:
        raise UserError(f"--profile {name} cannot be read: it is nested too deeply") from error
    except msgspec.DecodeError as error:  # a wrong form or value, which the message names
        raise UserError(
            f"--profile {name}: {error}\n"
            "  `phalanx bench io --profile resnet50 --print-profile` shows one to begin with"
        ) from error
    if not profile.compute_s:
        raise UserError(f"--profile {name}: compute_s names no accelerator, e.g. {{a100: 0.435}}")
    return profile


def profile_text(name: str) -> str:
    """Return the text of a profile's file."""
    if name in PROFILES:
        return (_FOLDER / f"{name}.yaml").read_text()
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"--profile {name} is none of {', '.join(PROFILES)}, nor a .yaml file")
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(
                f"--profile {name} cannot be read: it has more than {LARGEST_BYTES:,} bytes"
            )
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"--profile {name} cannot be read: {reason}") from error
