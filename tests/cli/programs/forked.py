"""Answers commands of `phalanx`, one JSON document a line, each in a fork of this process.

Nothing is imported anew, so a command takes milliseconds. Where a job would start, the command ends
with code 77 instead.
"""

import importlib
import json
import os
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import phalanx.cli
from phalanx.bench.io import job as io_job
from phalanx.cli import doctor
from phalanx.cli.main import main
from phalanx.jobs.job import Job
from phalanx.report import page

WOULD_START = 77
OVERDUE = "overdue"


def end_instead(*_: object, **__: object) -> NoReturn:
    raise SystemExit(WOULD_START)


def run(command: dict[str, Any]) -> NoReturn:
    """Be that command; this is the fork."""
    os.environ.update(command["environment"])
    os.chdir(command["folder"])
    for number, name in ((0, os.devnull), (1, command["stdout"]), (2, command["stderr"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(name, flags, 0o666), number)
    if command["user"] is not None:
        os.setgroups([])
        os.setgid(command["user"])
        os.setuid(command["user"])
    sys.argv = ["phalanx", *command["words"]]
    code = 1
    try:
        main(command["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # as the interpreter would print it
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def wait(pid: int, timeout_s: float) -> int | str:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return OVERDUE


for module in pkgutil.iter_modules(phalanx.cli.__path__):
    importlib.import_module(f"phalanx.cli.{module.name}")
Job.start = end_instead  # type: ignore[assignment,method-assign]
page._library_script = str  # type: ignore[assignment]  # seconds, and the same in every page
# What takes seconds before that:
io_job.generate = end_instead  # type: ignore[assignment]
doctor.examine = end_instead  # type: ignore[assignment]
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for line in sys.stdin:
    command = json.loads(line)
    pid = os.fork()
    if pid == 0:
        run(command)
    answer = {"code": wait(pid, command["timeout_s"])}
    for name in ("stdout", "stderr"):
        path = Path(command[name])
        answer[name] = path.read_text(errors="replace") if path.is_file() else ""
    print(json.dumps(answer), file=answers, flush=True)
