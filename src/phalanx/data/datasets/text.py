"""The embedded text as samples: windows of characters, and the character after each of theirs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.data.datasets.catalog import CONTEXT
from phalanx.data.datasets.language_reference import Reference, encode, read_reference

Tokens = NDArray[np.int64]


class TextArrays(NamedTuple):
    """Inputs and targets (n, context): target [i, t] is the character after inputs [i, :t + 1]."""

    train_inputs: Tokens
    train_targets: Tokens
    validation_inputs: Tokens
    validation_targets: Tokens


def read_text(reference: Reference | None = None) -> TextArrays:
    """The samples of a text; of the running Python's reference where none is given.

    Raises: UserError when this Python came without.
    """
    training, validation = reference or read_reference()
    return TextArrays(*windows(encode(training)), *windows(encode(validation)))


def windows(tokens: bytes, context: int = CONTEXT) -> tuple[Tokens, Tokens]:
    """Inputs and targets, each (n, context) and with memory of its own.

    The windows lie side by side: every character but those of the rest is an input once.
    """
    stream = np.frombuffer(tokens, np.uint8).astype(np.int64)
    used = num_windows(len(stream), context) * context
    return stream[:used].reshape(-1, context), stream[1 : used + 1].reshape(-1, context).copy()


def num_windows(num_characters: int, context: int = CONTEXT) -> int:
    """Samples that a text gives: the last character is a target only."""
    return max(0, num_characters - 1) // context
