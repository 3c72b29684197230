"""A rank knows the folder of its node whose files are sent home, by either of its names."""

import json
from pathlib import Path

import pytest

from phalanx.jobs.relayed import RELAYED, local_folder


def test_a_folder_is_known_by_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of `phalanx train` is given that of its node: its lines came home twice, as it took
    them for lines that nobody sends."""
    there, here = tmp_path / "there", tmp_path / "here"
    assert local_folder(there) is None
    monkeypatch.setenv(RELAYED, json.dumps([str(there), str(here)]))
    assert local_folder(there) == here
    assert local_folder(here) == here
    assert local_folder(tmp_path) is None
