"""What schemes are called: strategies, told apart by the options that matter."""

from typing import Any

import msgspec
import pytest

from phalanx.report.schemes import (
    group_of,
    makes_the_same_update,
    scheme_of,
    scheme_phrase,
)
from phalanx.report.training import layout_columns, workload_labels
from tests.report.made_events import set_otherwise
from tests.report.made_study import Job, run_of

BASE = run_of(Job("mlp", "mpi", ranks=4), "s").setting


def scheme(strategy: str, mesh: dict[str, int] | None = None, **options: Any) -> str:
    setting = msgspec.structs.replace(BASE, strategy=strategy, options=options, mesh=mesh or {})
    return scheme_of(setting)


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (scheme("sequential"), "sequential"),
        (scheme("mpi"), "mpi"),
        (scheme("mpi", all_reduce="ring"), "mpi ring"),
        (scheme("server", servers=2), "server 2 servers"),
        (scheme("server", server_mode="bounded", staleness=2), "server bounded"),
        (scheme("local", outer_optimizer="nesterov"), "local nesterov"),
        (scheme("zero", {"shard": 4}), "zero 3"),
        (scheme("zero", zero_stage=1), "zero 1"),
        (scheme("zero", {"shard": 4}, backend="gloo"), "zero 3 gloo"),
        (scheme("pipeline", {"pp": 4}), "pipeline 1f1b"),
        (scheme("pipeline", pipeline_schedule="gpipe"), "pipeline gpipe"),
        (scheme("mesh", {"dp": 2, "tp": 2}), "mesh dp=2,tp=2"),
        (scheme("mesh", {"shard": 2, "tp": 2}, zero_stage=2), "mesh shard=2,tp=2 ZeRO 2"),
    ],
)
def test_names(found: str, name: str) -> None:
    assert found == name


def test_runs_of_one_strategy_are_told_apart() -> None:
    run = run_of(Job("mlp", "mpi", ranks=4), "s")
    rows = [
        layout_columns(set_otherwise(run, options={"all_reduce": name}))
        for name in ("ring", "tree")
    ]
    assert rows[0]["cell"] != rows[1]["cell"]
    assert rows[0]["phrase"] == "the ring all-reduce on 4 ranks"


def test_sizes_of_a_model_make_another_workload() -> None:
    run = run_of(Job("mlp", "mpi", ranks=4), "s")
    wide = set_otherwise(msgspec.structs.replace(run, run="wide"), options={"width": 512})
    labels = workload_labels([run, wide])
    assert list(labels.values()) == ["MLP", "MLP \N{MIDDLE DOT} WIDTH 512"]


def test_what_is_known_of_schemes() -> None:
    assert scheme_phrase("zero 2") == "ZeRO 2"
    assert scheme_phrase("something else") == "something else"
    assert group_of("pipeline gpipe") == "split layers, pipelines"
    assert group_of("sequential") is None
    assert [makes_the_same_update(s) for s in ("mpi ring", "server", "server asynchronous")] == [
        True,
        True,
        False,
    ]
