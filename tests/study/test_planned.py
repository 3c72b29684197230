"""What a run of a study is: the command that makes it by itself, and its ranks' environment."""

import os

from phalanx.study.planned import command_words, environment_of
from phalanx.train.config import DEFAULTS, TrainConfig


def words(config: TrainConfig) -> list[str]:
    return command_words("train", config.as_record(), DEFAULTS)


def test_the_command_says_what_is_not_default() -> None:
    config = TrainConfig.from_options(
        model="gpt", strategy="tensor", ranks=2, sequence_parallel=True
    )
    assert " ".join(words(config)) == (
        "phalanx train --model gpt --strategy tensor --ranks 2 --sequence-parallel"
    )


def test_lists_are_words() -> None:
    assert command_words("scratch", {"hidden": (64, 32)}, {"hidden": (128,)}) == (
        ["phalanx", "scratch", "--hidden", "64", "32"]
    )


def test_the_environment_is_as_before_afterwards() -> None:
    os.environ.pop("PHALANX_TEST_WORD", None)
    with environment_of({"PHALANX_TEST_WORD": "1"}):
        assert os.environ["PHALANX_TEST_WORD"] == "1"
    assert "PHALANX_TEST_WORD" not in os.environ
