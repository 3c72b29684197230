"""What is wrong with the options is said with its numbers, before anything is started."""

import json
from dataclasses import replace

import pytest

from phalanx.errors import UserError
from phalanx.scratch.config import ScratchConfig, complete

WRONG = {
    "--ranks must be at least 1, not 0": {"ranks": 0},
    "--epochs must be at least 1, not -1": {"epochs": -1},
    "--train-samples must be at least 1, not 0": {"train_samples": 0},
    "--lr must be positive, not 0": {"lr": 0},
    "--lr must be positive, not nan": {"lr": float("nan")},
    "--lr must be positive, not inf": {"lr": float("inf")},
    "--momentum must be from 0 to below 1, not 1.0": {"momentum": 1.0},
    "--momentum must be from 0 to below 1, not -0.1": {"momentum": -0.1},
    "--seed must not be negative, not -1": {"seed": -1},
    "--timeout-s must be positive, not 0": {"timeout_s": 0},
    "--hidden must be widths of at least 1, not 64 0": {"hidden": (64, 0)},
    "--servers 2 is for --scheme server, not ring": {"servers": 2},
    "--scheme alone is one process, not 2 ranks": {"scheme": "alone", "ranks": 2},
    "--servers must be at least 1, not 0": {"scheme": "server", "servers": 0},
}
UNFIT = {
    "--train-samples must be 1 to 60000, not 60001": {"train_samples": 60_001},
    "--servers 2 of --ranks 2 leaves no worker: use --ranks 3 or more": {
        "scheme": "server",
        "servers": 2,
        "ranks": 2,
    },
    "--servers 1 of --ranks 1 leaves no worker: use --ranks 2 or more": {
        "scheme": "server",
        "ranks": 1,
    },
    "a global batch of 3 cannot be split over 4 workers: use --batch-size 4": {
        "batch_size": 3,
        "ranks": 4,
    },
    "the 4 outputs of layer 1 over 6 ranks, so that some get nothing: use at most --ranks 4": {
        "scheme": "tensor",
        "hidden": (4,),
        "ranks": 6,
    },
    "splits the 5 inputs of layer 3 over 6 ranks": {
        "scheme": "tensor",
        "hidden": (16, 5),
        "ranks": 6,
    },
}


@pytest.mark.parametrize("message", WRONG)
def test_a_value_that_cannot_be(message: str) -> None:
    with pytest.raises(UserError) as caught:
        ScratchConfig(**WRONG[message])  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize("message", UNFIT)
def test_values_that_do_not_fit_each_other(message: str) -> None:
    config = ScratchConfig(dataset="digits", **UNFIT[message])  # type: ignore[arg-type]
    with pytest.raises(UserError) as caught:
        complete(config)
    assert message in str(caught.value)


def test_a_width_that_is_not_cut_may_be_small() -> None:
    config = ScratchConfig(scheme="tensor", ranks=6, hidden=(16, 5, 16), dataset="digits")
    assert complete(config).ranks == 6


@pytest.mark.parametrize("scheme", ["alone", "server", "library", "ring", "tensor"])
def test_defaults_are_filled_in_and_survive_the_record(scheme: str) -> None:
    config = complete(ScratchConfig(scheme=scheme, dataset="digits"))  # type: ignore[arg-type]
    assert (config.ranks == 1) == (scheme == "alone")
    assert config.servers == (1 if scheme == "server" else None)
    assert config.threads >= 1
    again = ScratchConfig.from_record(json.loads(json.dumps(config.as_record())))
    assert again == config
    assert complete(config) == config


def test_the_number_of_ranks_decides_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    config = complete(ScratchConfig(ranks=2, dataset="digits"))
    assert replace(config, ranks=1024).threads == 1
    monkeypatch.setattr("phalanx.scratch.config.usable_cores", lambda: 8)
    assert config.threads == 4
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x2)")
    assert config.threads == 8
