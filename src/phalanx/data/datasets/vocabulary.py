"""Characters as numbers: the same numbers on every machine, whatever the text."""

from __future__ import annotations

from collections.abc import Iterable

ALPHABET = "\n" + "".join(map(chr, range(0x20, 0x7F)))
"""What has a token of its own: the end of a line and the printable characters of ASCII."""

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
