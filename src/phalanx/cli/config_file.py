"""Options from a file: `--config run.toml`, or YAML. The command line overrides them."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App, ArgumentCollection, CycloptsError
from cyclopts.config import ConfigFromFile, Toml, Yaml

from phalanx.errors import UserError

OPTION = "--config"
LARGEST_BYTES = 20_000
_KINDS: dict[str, type[ConfigFromFile]] = {".toml": Toml, ".yaml": Yaml, ".yml": Yaml}


def read_config(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Add the options of the file named by `--config`, if any.

    Raises: UserError when there is no such file, or it cannot be read.
    """
    for argument in arguments:
        if argument.name == OPTION and argument.tokens:
            _add(Path(argument.tokens[0].value), app, commands, arguments)


def _add(path: Path, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    if path.suffix.lower() not in _KINDS:
        raise UserError(f"--config {path}: use a file that ends in {', '.join(_KINDS)}")
    if not path.is_file():
        raise UserError(f"--config {path}: there is no such file")
    if path.stat().st_size > LARGEST_BYTES:
        raise UserError(f"--config {path} cannot be read: it exceeds {LARGEST_BYTES:,} bytes")
    source = _KINDS[path.suffix.lower()](path, must_exist=True, use_commands_as_keys=False)
    try:
        options = source.config
    except (OSError, ValueError, CycloptsError) as error:
        raise UserError(f"--config {path} cannot be read: {str(error).strip()}") from error
    if not isinstance(options, dict):
        raise UserError(f'--config {path} has no options: write one per line, e.g. model = "cnn"')
    source(app, commands, arguments)
