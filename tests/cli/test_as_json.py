"""Studies and runs as JSON, those too that did not come to their end."""

import json
from pathlib import Path

import pytest

from phalanx.cli.as_json import print_study, printed_run
from phalanx.errors import RunFailedError, UserError
from tests.report.made_study import Job, make_run, troubled_study


def test_a_study_that_was_troubled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = troubled_study(tmp_path / "troubled")
    print_study(folder, folder / "report.html", wanted=False)
    assert not capsys.readouterr().out
    print_study(folder, folder / "report.html", wanted=True)
    study = json.loads(capsys.readouterr().out)
    assert (study["kind"], study["folder"]) == ("scaling", str(folder))
    statuses = {run["status"] for run in study["runs"]}
    assert {"completed", "failed"} <= statuses
    for run in study["runs"]:
        assert (run["status"] == "completed") <= (run["epoch_s"] is not None)
        assert run["status"] != "failed" or run["error"]


def test_a_run_is_printed_however_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "run", Job("cnn", "mpi", ranks=2))
    with pytest.raises(RunFailedError), printed_run(folder, wanted=True):
        raise RunFailedError("rank 1 failed")
    assert json.loads(capsys.readouterr().out)["folder"] == str(folder)
    with pytest.raises(UserError), printed_run(folder, wanted=True):
        raise UserError("the folder is taken by another run")
    assert not capsys.readouterr().out, "it is not this one's"
    with printed_run(folder, wanted=False):
        pass
    assert not capsys.readouterr().out
