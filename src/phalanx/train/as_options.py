"""Errors of `phalanx.start` in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.checkpoints.manifest import OtherRecipeError
from phalanx.errors import UserError
from phalanx.parallel.option_groups import default_options, option
from phalanx.parallel.options import StrategyOptions
from phalanx.train import options
from phalanx.train.options import PATHS, SCHEDULE

KNOWN = default_options(
    *(options.CheckpointOptions, options.CommunicationOptions, options.DataOptions),
    *(options.OptimizerOptions, options.ParallelOptions, options.TrainingOptions, StrategyOptions),
)

WORDS = {
    "checkpoints=Checkpoints(allow_changes=True)": "--allow-changes",
    "global_batch_size of the program": "--batch-size",
    ", end it by run.close()": "",
    "bitwise=True": "--bitwise",
}
"""Words of a program that no rule turns into an option."""
_ARGUMENT = re.compile(
    r"""(?<![^\s("])([a-z_]+)(?:=["']([^"']*)["']|=(?=[\s,:;.)]|$)|(=)| of the program\b)"""
)
"""An argument of Python, which is no part of a path: folders are called lr=0.1, too."""


@contextmanager
def as_options() -> Iterator[None]:
    """Let errors within name options of the command line in place of arguments of Python."""
    try:
        yield
    except UserError as error:
        text = in_options(str(error))
        if isinstance(error, OtherRecipeError) and set(error.names) <= set(SCHEDULE):
            text = (
                "add --restart-schedule to restart the schedule over the remaining epochs, or use "
                f"the options of the checkpoint\n{text.splitlines()[0]}"
            )
        raise UserError(text) from error.__cause__ or error


def in_options(text: str) -> str:
    """Return a text with options in place of arguments."""
    for words, there in WORDS.items():
        text = text.replace(words, there)
    return _ARGUMENT.sub(_option, text)


def _option(argument: re.Match[str]) -> str:
    name, value, has_value = argument.groups()
    rest = argument.string[argument.end() :].split(maxsplit=1)
    if name not in KNOWN or (has_value and name not in PATHS and "/" in "".join(rest[:1])):
        return argument[0]
    return option(name) + (f" {value}" if value is not None else " " * bool(has_value))
