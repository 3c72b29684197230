"""Words of the command line that belong to a user's program."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def separate_program(words: Sequence[str]) -> list[str]:
    """Return the words with `--` before the program of `phalanx launch` or `check`.

    All behind is the program's, also where these have an option of that name. What follows the
    `--program` of a study becomes one word. Other commands stay as they are.
    """
    if list(words[:2]) == ["study", "scaling"] and "--program" in words[:-1]:
        number = list(words).index("--program") + 1
        program = words[number:]
        return [*words[:number], program[0] if len(program) == 1 else shlex.join(program)]
    if not words or words[0] not in ("launch", "check"):
        return list(words)
    valued, number = _options_with_value(words[0]), 1
    while number < len(words) and words[number].startswith("-") and words[number] != "-m":
        if words[number] == "--":
            return list(words)
        number += 2 if words[number] in valued else 1
    return [*words[:number], "--", *words[number:]] if number < len(words) else list(words)


def _options_with_value(command: str) -> set[str]:
    """Return the options of a command that the next word belongs to."""
    from phalanx.cli.app import app  # takes a second, as in `main`

    options = app[command].assemble_argument_collection()
    return {name for each in options if each.hint is not bool for name in each.names}
