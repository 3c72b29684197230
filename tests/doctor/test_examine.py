"""A check that fails or hangs is a finding, and the others go on."""

import io
import json
import threading

from rich.console import Console

from phalanx.doctor.examine import Check, examine, ok, problem, warning
from phalanx.doctor.show import as_json, show_table, verdict
from phalanx.errors import UserError

FINDINGS = [
    ok("Python", "3.13"),
    warning("cores", "2 usable for 3 ranks", "--ranks 2"),
    problem("MPI", "[bold]none[/bold] was found"),
]


def fail(error):
    raise error


def test_whatever_happens_is_a_finding():
    never = threading.Event()
    checks = [
        Check(name="a", run=lambda: fail(UserError("no data: get some"))),
        Check(name="b", run=lambda: fail(KeyError("x"))),
        Check(name="c", run=lambda: never.wait() and [], timeout_s=0.05),
        Check(name="d", run=lambda: [ok("d", "fine")]),
    ]
    found = list(examine(checks))
    never.set()
    assert found == [
        problem("a", "no data: get some"),
        problem("b", "KeyError: 'x'"),
        problem("c", "no answer within 0.05 s"),
        ok("d", "fine"),
    ]


def test_the_table_says_everything_in_words():
    console = Console(file=io.StringIO(), width=60, color_system=None)
    show_table(FINDINGS, console)
    text = console.file.getvalue()
    assert [line.split()[:2] for line in text.splitlines()[:3]] == [
        ["Python", "ok"],
        ["cores", "warning"],
        ["MPI", "problem"],
    ]
    assert "cores: 2 usable for 3 ranks\n  fix: --ranks 2\n" in text
    assert "MPI: [bold]none[/bold] was found\n" in text
    assert text.endswith("\n1 problem, 1 warning\n")


def test_verdict():
    assert verdict(FINDINGS[:1]) == "no problems found"
    assert verdict([FINDINGS[1]] * 2) == "2 warnings"


def test_json():
    first, second, _ = json.loads(as_json(FINDINGS))
    assert first == {"name": "Python", "status": "ok", "detail": "3.13", "mend": None}
    assert second["mend"] == "--ranks 2"
