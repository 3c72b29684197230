"""Many commands a second: `main` in forks of one process that has imported everything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

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


class Forks:
    """Runs commands, as another user where one is named."""

    def __init__(self) -> None:
        self._outputs = tempfile.TemporaryDirectory(prefix="forked-")
        Path(self._outputs.name).chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )

    def run(
        self,
        *words: str,
        folder: Path,
        user: int | None = None,
        stdout: str | None = None,
        timeout_s: float = 30.0,
        environment: Mapping[str, str] | None = None,
    ) -> Done:
        outputs = Path(self._outputs.name)
        command = {
            "words": words,
            "folder": str(folder),
            "user": user,
            "stdout": stdout or str(outputs / "stdout"),
            "stderr": str(outputs / "stderr"),
            "timeout_s": timeout_s,
            "environment": dict(environment or {}),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return Done(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()
        self._outputs.cleanup()


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
