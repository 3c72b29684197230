"""Does as `phalanx` with the words after the first, as the user of that number; -1: as this one.

Where a job would start, it ends with code 77 instead.
"""

import os
import sys
from typing import NoReturn

from phalanx.bench.io import job as io_job
from phalanx.cli import doctor
from phalanx.cli.main import main
from phalanx.jobs.job import Job
from phalanx.report import page

WOULD_START = 77


def end_instead(*_: object, **__: object) -> NoReturn:
    raise SystemExit(WOULD_START)


Job.start = end_instead  # type: ignore[assignment,method-assign]
page._library_script = str  # type: ignore[assignment]  # seconds, and the same in every page
# What takes seconds before that:
io_job.generate = end_instead  # type: ignore[assignment]
doctor.examine = end_instead  # type: ignore[assignment]
user = int(sys.argv.pop(1))
if user >= 0:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
sys.argv[0] = "phalanx"
main(sys.argv[1:])
