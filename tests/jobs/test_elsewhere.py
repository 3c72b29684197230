"""Nodes of a job that are asked at once: time-outs that many good nodes keep."""

import time
from pathlib import Path

import pytest

from phalanx.jobs import elsewhere
from phalanx.jobs.allocation import Allocation, Node
from phalanx.jobs.elsewhere import (
    ANSWER_S,
    LOGIN_S,
    end_elsewhere,
    num_waves,
    patience,
    run_on_each,
)


@pytest.mark.parametrize(
    ("num_nodes", "waves", "answer_s", "login_s"),
    [(1, 1, 9, 60), (3, 1, 9, 60), (64, 1, 25, 76), (65, 2, 25, 76), (1000, 16, 25, 76)],
)
def test_a_node_gets_time_for_those_that_are_asked_at_once(
    num_nodes: int, waves: int, answer_s: float, login_s: float
) -> None:
    assert num_waves(num_nodes) == waves
    assert patience(ANSWER_S, num_nodes) == answer_s
    assert patience(LOGIN_S, num_nodes) == login_s


def test_ctrl_c_begins_no_later_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(name: str, *_: object) -> str:
        asked.append(name)
        time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(elsewhere, "_run_on", ask)
    nodes = Allocation(
        nodes=tuple(Node(name=f"192.0.2.{n}", slots=1) for n in range(256)), source="--hosts"
    )
    with pytest.raises(KeyboardInterrupt):
        run_on_each(nodes, elsewhere.__file__, [])
    assert len(asked) < 200


def test_good_nodes_that_begin_one_after_the_other_are_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system that begins step after step had 9 s for all of a wave: good nodes were called
    silent, and left out of a restart."""
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\nexec 9>{tmp_path}/lock\nflock 9\nsleep 0.02\n")
    agent.chmod(0o755)
    monkeypatch.setattr(elsewhere, "LOGIN_S", 0.3)
    nodes = Allocation(
        nodes=tuple(Node(name=f"192.0.2.{n}", slots=1) for n in range(64)), source="--hosts"
    )
    silent = end_elsewhere(nodes, "token", {"PRTE_MCA_plm_ssh_agent": str(agent)})
    assert silent == {}
