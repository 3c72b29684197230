"""Commands of `phalanx`, by name."""

from __future__ import annotations

from cyclopts import App

from phalanx import __version__
from phalanx.cli.config_file import read_config
from phalanx.cli.lazy import add_command
from phalanx.cli.whole_numbers import refuse_fractions

STUDY_HELP = "Compare options by measuring them on this machine, and draw a report."
BENCH_HELP = "Benchmark collectives and storage against other libraries."

refuse_fractions()
app = App(
    name="phalanx",
    help="Train PyTorch models over MPI on the stock PyTorch wheel, every run measured.",
    version=__version__,
)
# A sub-command's module is read only when it is called, so that `--help` answers at once.
app.command("phalanx.cli.data:app", name="data", help="List, fetch, pack and verify data sets.")
add_command(app, "train", "phalanx.cli.train:train", config=read_config)
add_command(app, "launch", "phalanx.cli.launch:launch")
add_command(app, "check", "phalanx.cli.check:check")
add_command(app, "trace", "phalanx.cli.trace:trace")
app.command("phalanx.cli.study:app", name="study", help=STUDY_HELP)
app.command("phalanx.cli.bench:app", name="bench", help=BENCH_HELP)
add_command(app, "plan", "phalanx.cli.plan:plan")
add_command(app, "report", "phalanx.cli.report:report")
add_command(app, "compare", "phalanx.cli.compare:compare")
add_command(app, "doctor", "phalanx.cli.doctor:doctor")
app.register_install_completion_command(add_to_startup=False)
