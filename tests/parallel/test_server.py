"""Parameter servers: who waits for whom. That they give the numbers of one process is shown in
tests/train/test_truth.py."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.errors import UserError
from phalanx.models.options import DataShape
from phalanx.parallel.options import ServerOptions
from phalanx.parallel.server import Server
from phalanx.train.config import TrainConfig
from phalanx.train.validate import validate
from tests.conftest import Ranks


def test_servers_without_workers_are_refused() -> None:
    world: Any = SimpleNamespace(rank=0, size=2, local_rank=0, library="")
    with pytest.raises(UserError, match="--servers 2 of 2 ranks leaves no worker"):
        Server(world, ServerOptions(servers=2))


def test_a_server_cannot_be_made_slow() -> None:
    shape = DataShape(inputs=(1, 28, 28), num_classes=10)
    config = TrainConfig.from_options(strategy="server", ranks=3, threads=1, slow_rank="2:0.1")
    with pytest.raises(UserError, match="rank 2 is a server, which computes no steps; workers"):
        validate(config, shape)
    validate(replace(config, slow_rank="1:0.1"), shape)


@pytest.mark.mpi
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_nobody_is_further_ahead_than_allowed(
    ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    output = ranks.mpi(5, programs("server.py"), "leads", timeout_s=250)
    assert "all modes are done" in output
    leads = {case: int(lead) for case, lead in re.findall(r"(\d \w+ \d): lead (\d+)", output)}
    assert leads["1 bounded 0"] == 0
    assert leads["1 bounded 1"] <= 1 < leads["1 asynchronous 0"]
    assert leads["2 bounded 2"] <= 2


@pytest.mark.mpi
def test_who_does_not_come_is_named(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    output = ranks.mpi(3, programs("server.py"), "late", may_fail=True)
    assert "rank 2 says: rank 2, a server, waited 1 s for gradients of rank 1" in output
    assert re.search(r"rank 0 says: rank 0 waited 1 s in receive from rank 2", output)
