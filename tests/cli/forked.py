"""Many commands a second: `main` in forks of one process that has imported everything."""

from __future__ import annotations

import contextlib
import os
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from phalanx import cli
from tests.conftest import ONE_THREAD, forking

PROGRAM = Path(__file__).parent / "programs" / "forked.py"
WOULD_START = 77


@dataclass(frozen=True)
class Done:
    code: int | str  # "overdue" when it was killed for taking too long
    stdout: str
    stderr: str

    @property
    def is_refused_well(self) -> bool:
        """Exit code 2, and one to four lines that say why."""
        lines = [line for line in self.stderr.splitlines() if "━" not in line]  # a bar of progress
        if len(lines) > 1 and re.match(r"\d+ ranks? on ", lines[0]):  # by --json, the plan
            del lines[0]
        return self.code == 2 and 1 <= len(lines) <= 4 and lines[0].startswith("phalanx: ")


@dataclass(frozen=True)
class Forks:
    """Runs commands, as another user where one is named."""

    python: Path

    def run(
        self,
        *words: str,
        folder: Path,
        user: int = -1,
        stdout: str | None = None,
        timeout_s: float = 30.0,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Done:
        with (
            Path(stdout).open("w") if stdout else contextlib.nullcontext(subprocess.PIPE) as output
        ):
            try:
                done = subprocess.run(
                    [str(self.python), str(PROGRAM), str(user), *words],
                    cwd=folder,
                    env={**os.environ, "COLUMNS": "200", **ONE_THREAD, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    timeout=timeout_s,
                )
            except subprocess.TimeoutExpired as late:
                return Done("overdue", str(late.stdout or ""), str(late.stderr or ""))
        return Done(done.returncode, done.stdout or "", done.stderr)


@contextlib.contextmanager
def forks() -> Iterator[Forks]:
    """One process that imports everything, whose forks are commands."""
    modules = [f"phalanx.cli.{module.name}" for module in pkgutil.iter_modules(cli.__path__)]
    with (
        tempfile.TemporaryDirectory(prefix="forking-") as folder,
        forking(Path(folder), *modules, "phalanx.bench.io.job", "phalanx.report.page") as python,
    ):
        yield Forks(python)


@dataclass(frozen=True)
class Forked:
    """Commands that take `folder` for their home, the folder of their data and, unless another is
    named, that at hand."""

    forks: Forks
    folder: Path

    def __call__(self, *words: str, folder: Path | None = None, **options: Any) -> Done:
        places = {"PHALANX_DATA": str(self.folder), "HOME": str(self.folder)}
        environment = {**places, **(options.pop("environment", None) or {})}
        where = folder or self.folder
        return self.forks.run(*words, folder=where, environment=environment, **options)
