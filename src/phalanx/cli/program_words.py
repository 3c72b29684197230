"""The words of `phalanx launch` that belong to the program."""

from __future__ import annotations

from collections.abc import Sequence

_WITH_VALUE = ("-n", "--ranks", "--threads", "--log-dir")


def separate_program(words: Sequence[str]) -> list[str]:
    """Return the words with `--` before the program of `phalanx launch`: all behind is the
    program's, also where launch has an option of that name. Other commands stay as they are."""
    if not words or words[0] != "launch":
        return list(words)
    number = 1
    while number < len(words) and words[number].startswith("-") and words[number] != "-m":
        if words[number] == "--":
            return list(words)
        number += 2 if words[number] in _WITH_VALUE else 1
    return [*words[:number], "--", *words[number:]] if number < len(words) else list(words)
