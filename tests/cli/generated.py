"""Command lines made at random from what each command declares: fitting values and absurd ones."""

from __future__ import annotations

import os
import random
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from cyclopts import App

INTEGERS = ("0", "1", "2", "3", "7", "64", "-1", "1e3", "2.5", "five", "", "0x10", "nan", "9" * 25)
FLOATS = ("0", "1", "0.1", "1e-300", "-1", "1e400", "nan", "inf", "-inf", "abc", "")
TEXTS = ("", " ", "a", "é", "[/red]", "x" * 300, "../..", "\n", "none", "1Gbit/s,1ms", "64KB", "-",
         "--", "1KB,x", "{0}", "%s", os.fsdecode(b"\xff"))  # fmt: skip
WRITTEN = ("out", "a/b/c", "x" * 300, "/dev/null/x", "/proc/x", "", os.fsdecode(b"\xff"), ".")
STRAY = ("--bogus", "--ranks", "extra", "-h-", "--model", "--", "\x7f", "--no-model", "=", "--=3")
NOT_MADE = {("data", "fetch")}  # asks the network
LEFT_OUT = {"--open"}  # a browser
FOLDERS_WRITTEN = {"--run-dir", "--checkpoint-dir", "--stage", "--study-dir", "--output",
                   "--data-dir", "--trace-dir"}  # fmt: skip


@dataclass(frozen=True)
class Option:
    names: tuple[str, ...]
    hint: Any
    is_positional: bool


@dataclass(frozen=True)
class Command:
    words: tuple[str, ...]
    options: tuple[Option, ...]


def commands_of(app: App, words: tuple[str, ...] = ()) -> Iterator[Command]:
    """All commands below `app` with what they declare."""
    for name in app:
        if name.startswith("-"):
            continue
        below, path = app[name], (*words, name)
        if below.default_command is not None and path not in NOT_MADE:
            options = tuple(
                Option(argument.names, argument.hint, not argument.names[0].startswith("-"))
                for argument in below.assemble_argument_collection()
                if argument.names[0] != "*" and argument.names[0] not in LEFT_OUT
            )
            yield Command(path, options)
        yield from commands_of(below, path)


class Generator:
    """places: files and folders that are there, to be read."""

    def __init__(self, seed: int, commands: Sequence[Command], places: Sequence[Path]) -> None:
        self._random = random.Random(seed)
        self._commands = commands
        self._places = (*map(str, places), "nowhere", "x" * 300, "", ".", "/dev/null", "/")

    def line(self) -> list[str]:
        choose = self._random
        command = choose.choice(self._commands)
        words = list(command.words)
        positional = [option for option in command.options if option.is_positional]
        named = [option for option in command.options if not option.is_positional]
        for option in positional:
            if choose.random() < 0.9:
                words.append(self._value(option.hint, option, last=option is positional[-1]))
        for option in choose.sample(named, min(len(named), choose.choice((0, 1, 1, 2, 2, 3, 5)))):
            words += self._named(option)
        if choose.random() < 0.1:
            words.insert(choose.randint(1, len(words)), choose.choice(STRAY))
        return words

    def _named(self, option: Option) -> list[str]:
        choose, hint = self._random, _without_none(option.hint)
        name = choose.choice([name for name in option.names if name.startswith("-")])
        if hint is bool:
            return [choose.choice((name, f"{name}=maybe", name))]
        count = choose.choice((1, 1, 2, 3)) if get_origin(hint) is tuple else 1
        return [name, *(self._value(hint, option) for _ in range(count))]

    def _value(self, hint: Any, option: Option, *, last: bool = False) -> str:
        choose, hint = self._random, _without_none(hint)
        if get_origin(hint) is tuple:
            hint = get_args(hint)[0]
        if get_origin(hint) is Literal:
            fits = [str(word) for word in get_args(hint)]
            return choose.choice([*fits, *fits, "bogus", ""])
        if hint is int:
            return choose.choice(INTEGERS)
        if hint is float:
            return choose.choice(FLOATS)
        if hint is Path:
            is_written = option.names[0] in FOLDERS_WRITTEN or (option.is_positional and last)
            return choose.choice(WRITTEN if is_written else self._places)
        if option.is_positional:
            return choose.choice((*self._places, *TEXTS))
        return choose.choice(TEXTS)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) is typing.Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return _without_none(kinds[0])
    return hint
