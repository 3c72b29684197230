"""What a run of a study is: the command that makes it by itself, and its ranks' environment."""

import os
from pathlib import Path

from phalanx.study.compression import CompressionConfig
from phalanx.study.io import IoStudyConfig
from phalanx.study.large_batch import LargeBatchConfig
from phalanx.study.parallelism import ParallelismConfig
from phalanx.study.run import command_words, environment_of, study_folder
from phalanx.study.scaling import ScalingConfig
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
    assert command_words("train", {"betas": (0.9, 0.99)}, {"betas": None}) == (
        ["phalanx", "train", "--betas", "0.9", "0.99"]
    )


def test_the_environment_is_as_before_afterwards() -> None:
    os.environ.pop("PHALANX_TEST_WORD", None)
    with environment_of({"PHALANX_TEST_WORD": "1"}):
        assert os.environ["PHALANX_TEST_WORD"] == "1"
    assert "PHALANX_TEST_WORD" not in os.environ


def test_the_same_options_have_the_same_folder(tmp_path: Path) -> None:
    configs = [(seed,) for seed in (0, 0, 1)]
    for kind in (ScalingConfig, CompressionConfig, LargeBatchConfig, ParallelismConfig):
        folders = [study_folder(kind(seeds=seeds), "kind", "digits") for seeds in configs]
        assert folders[0] == folders[1] != folders[2]
        assert folders[0].parts[0] == "runs"
        assert folders[0].name.startswith("kind-digits-")
        found = [study_folder(kind(), "kind", found=[data]) for data in ("digits", "mnist")]
        assert found[0] != found[1]
        assert study_folder(kind(study_dir=tmp_path), "kind") == tmp_path
    assert study_folder(IoStudyConfig(), "io") == study_folder(IoStudyConfig(), "io")
    assert study_folder(IoStudyConfig(), "io") != study_folder(IoStudyConfig(runs=4), "io")
