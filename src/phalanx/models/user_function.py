"""Functions of the user's program, by `file.py:function` or `package.module:function`. No torch."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.errors import UserError


@dataclass(frozen=True)
class FunctionName:
    """A function as an option of the command line names it."""

    option: str
    place: str
    """Path of a file, or name of a module."""
    function: str

    @classmethod
    def parse(cls, option: str, text: str) -> FunctionName:
        """Raises: UserError when `text` is not `place:function`."""
        place, _, function = text.rpartition(":")
        if not place or not function.isidentifier():
            raise UserError(f"{option} {text}: write file.py:function or package.module:function")
        return cls(option, place, function)

    @property
    def label(self) -> str:
        """Return the name without folders, for records: `file.py:function`."""
        place = Path(self.place).name if self.place.endswith(".py") else self.place
        return f"{place}:{self.function}"

    def __str__(self) -> str:
        return f"{self.option} {self.place}:{self.function}"


def load(name: FunctionName) -> Callable[..., Any]:
    """Import the file or module, once in this process, and return the function.

    Raises: UserError as `load_any`, and where it is no function.
    """
    found = load_any(name)
    if not callable(found):
        raise UserError(f"{name} is a {type(found).__name__}: it must be a function")
    function: Callable[..., Any] = found
    return function


def load_any(name: FunctionName) -> Any:
    """Import the file or module, once in this process, and return what it calls so.

    The file's folder, or for a module the current one, is on the search path as for a program.
    Raises: UserError when it is not there, or cannot be imported.
    """
    if name.place.endswith(".py"):
        with users_code(name):
            module = _import_file(name, Path(name.place))
    else:
        _search(Path.cwd())
        with users_code(name):
            module = importlib.import_module(name.place)
    if hasattr(module, name.function):
        return getattr(module, name.function)
    there = [
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    raise UserError(f"{name}: there is no such name; there are {', '.join(there) or 'none'}")


def _import_file(name: FunctionName, path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"{name}: there is no file {path}")
    key = str(path.resolve())
    if key in sys.modules:
        return sys.modules[key]
    _search(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(key, path.resolve())
    assert spec is not None and spec.loader is not None, "its name ends in .py"
    module = sys.modules[key] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise
    return module


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@contextlib.contextmanager
def users_code(what: object) -> Iterator[None]:
    """Raise what the user's code raises within as a UserError of two lines: `what` failed how, and
    in which file and line."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        message = str(error).strip().split("\n")[0]
        first = f"{what}: {type(error).__name__}" + (f": {message}" if message else "")
        raise UserError(f"{first}\n{_place(error)}") from error


def _place(error: BaseException) -> str:
    """Return file and line of the code of the user that raised `error`, and what stands there."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {(error.text or '').strip()}"
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if not _is_library(frame.filename)] or frames
    if not own:
        return "where it was called"
    frame = own[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line or ''}"


def _is_library(file: str) -> bool:
    folders = (str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix, "<frozen")
    return file.startswith(folders)
