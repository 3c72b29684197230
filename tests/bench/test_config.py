"""Options: what they become, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from phalanx.bench.config import COLLECTIVES, DEFAULT_PATHS, CollectivesConfig
from phalanx.errors import UserError


def test_words_with_commas_are_several() -> None:
    config = CollectivesConfig(collectives=("broadcast,all_reduce",), paths=("mpi", "gloo,phalanx"))
    assert config.chosen_collectives == ("all_reduce", "broadcast")
    assert config.chosen_paths == ("phalanx", "mpi", "gloo")


def test_all_and_nothing() -> None:
    assert CollectivesConfig(collectives=("all",)).chosen_collectives == COLLECTIVES
    assert CollectivesConfig().chosen_paths == DEFAULT_PATHS


def test_options_survive_a_record() -> None:
    config = CollectivesConfig(ranks=3, sizes=("4", "1MB"), output=Path("out"), repeats=5)
    read = msgspec.json.decode(msgspec.json.encode(config.as_record()))
    assert CollectivesConfig.from_record(read) == config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "--ranks must be at least 1, not 0"),
        ({"repeats": 0}, "--repeats must be at least 1, not 0"),
        ({"loop": 0}, "--loop must be at least 1, not 0"),
        ({"seconds": 0.0}, "--seconds must be positive, not 0"),
        ({"paths": ("smoke",)}, "--paths smoke is not one of window, phalanx"),
        ({"collectives": ("reduce",)}, "--collectives reduce is not one of all_reduce"),
        ({"collectives": (",",)}, "--collectives needs at least one of"),
        ({"sizes": ("big",)}, "--sizes big: not a size"),
        ({"device": "cuda", "paths": ("phalanx",)}, "--device cuda is for path torch: add"),
        ({"op": "band"}, "--op band --dtype float32: float32 has no reduction BAND"),
    ],
)
def test_what_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CollectivesConfig(**options)  # type: ignore[arg-type]


def test_calls_are_timed_together_where_ranks_share_cores() -> None:
    assert CollectivesConfig().calls_a_time(2, cores=2) == 1
    assert CollectivesConfig().calls_a_time(8, cores=2) == 10
    assert CollectivesConfig(loop=5).calls_a_time(2, cores=2) == 5
