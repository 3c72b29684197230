"""The language reference that every CPython carries for `help()`: the source of the data `text`.

Needs neither PyTorch nor NumPy. The text differs from one version of Python to the next.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import re
from collections.abc import Iterable
from typing import NamedTuple

from phalanx.errors import UserError

_SOURCE = "pydoc_data.topics"
_VALIDATION_SHARE = 10  # one topic of so many
_BLANK_LINES = re.compile(r"\n\s*\n")


class Reference(NamedTuple):
    """The text, in two parts that share no paragraph."""

    training: str
    validation: str


def has_reference() -> bool:
    """Return whether this Python includes its reference; some distributions leave it out."""
    try:
        return importlib.util.find_spec(_SOURCE) is not None
    except ModuleNotFoundError:
        return False


def read_reference() -> Reference:
    """The reference of the running Python, cut in two.

    Raises: UserError when this Python came without.
    """
    if not has_reference():
        raise UserError(
            f"this Python {platform.python_version()} came without {_SOURCE}, the source of the "
            "data set `text`: use a Python from python.org, conda or uv"
        )
    from pydoc_data.topics import topics

    return cut(topics)


def cut(topics: dict[str, str]) -> Reference:
    """The last tenth of the topics, by name, is for validation; what they say that the others
    say too, paragraph by paragraph, is left out of the training text.

    The reference repeats itself: without that, a tenth of the validation text would be known.
    """
    names = sorted(topics)
    first = len(names) - max(1, len(names) // _VALIDATION_SHARE)
    validation = [topics[name].strip("\n") for name in names[first:]]
    withheld = {_squeezed(p) for topic in validation for p in _BLANK_LINES.split(topic)}
    training = []
    for name in names[:first]:
        paragraphs = _BLANK_LINES.split(topics[name].strip("\n"))
        kept = [paragraph for paragraph in paragraphs if _squeezed(paragraph) not in withheld]
        training.append("\n\n".join(kept))
    return Reference(_joined(training), _joined(validation))


def describe_reference() -> str:
    """Describe the text, for the user and for the record.

    Raises: UserError when this Python came without.
    """
    reference = read_reference()
    return (
        f"the language reference of Python {platform.python_version()}, "
        f"{sum(map(len, reference)):,} characters (SHA-256 {fingerprint(reference)[:16]}…)"
    )


def fingerprint(reference: Reference) -> str:
    """The SHA-256 of both parts, in hexadecimal digits."""
    return hashlib.sha256("\0".join(reference).encode()).hexdigest()


def _squeezed(paragraph: str) -> str:
    """Remove indentation and line breaks, in which repetitions differ."""
    return " ".join(paragraph.split())


def _joined(topics: list[str]) -> str:
    return "\n\n\n".join(topic for topic in topics if topic) + "\n"


ALPHABET = "\n" + "".join(map(chr, range(0x20, 0x7F)))
"""Characters with a token of their own: the end of a line and the printable characters of ASCII."""

UNKNOWN = len(ALPHABET)
"""The token of every other character."""

VOCABULARY = len(ALPHABET) + 1

_TOKENS = {character: token for token, character in enumerate(ALPHABET)}
_CHARACTERS = ALPHABET + "\N{REPLACEMENT CHARACTER}"


def encode(text: str) -> bytes:
    """A byte a character: its token, from 0 to below VOCABULARY."""
    return bytes(_TOKENS.get(character, UNKNOWN) for character in text)


def decode(tokens: Iterable[int]) -> str:
    """The text of `tokens`; characters that had no token of their own become U+FFFD.

    Raises: ValueError when a token is not one of the vocabulary's.
    """
    tokens = list(tokens)
    wrong = next((token for token in tokens if not 0 <= token < VOCABULARY), None)
    if wrong is not None:
        raise ValueError(f"token {wrong} is not one of the {VOCABULARY} of the vocabulary")
    return "".join(_CHARACTERS[token] for token in tokens)
