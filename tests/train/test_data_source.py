"""`--data`: known before anything starts, refused with the numbers that do not fit."""

from pathlib import Path

import numpy as np
import pytest

from phalanx.data.packed.pack import Pack
from phalanx.data.sources.packed import describe
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.run.packed import measure, preparation
from phalanx.train.agreement import packed_of
from phalanx.train.config import TrainConfig
from phalanx.train.run import complete, setting_of, title
from tests.data.packs import make_pack, rows


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "flowers"
    return make_pack(folder, shape=(3, 8, 6), dtype="uint8", samples=40)


def test_a_run_is_called_by_its_pack(pack: Path) -> None:
    config, choice = complete(
        TrainConfig.from_options(data=pack, ranks=2, strategy="mpi", readers=1), None
    )
    assert "flowers: 40 samples for training and 20 for validation in" in choice.reason
    assert setting_of(config).dataset == "flowers"
    assert setting_of(config).options == {"readers": 1}
    assert "mlp on flowers: mpi" in title(config)
    assert TrainConfig.from_record(config.as_record()) == config


def test_pixels_are_measured_the_same_on_every_rank(pack: Path) -> None:
    config = TrainConfig.from_options(data=pack, model="resnet")
    found = preparation(packed_of(config), describe(pack), RunGroup(), seed=0)
    inputs = rows(40, (3, 8, 6), "uint8")[0]
    assert found.means == inputs.mean((0, 2, 3)).tolist()
    assert found.deviations == inputs.std((0, 2, 3)).tolist()
    again = measure(Pack(pack / "train"), describe(pack)).split("/")[0].split()
    assert [float(word) for word in again] == found.means
    assert np.allclose(found.means, 127, atol=20)


REFUSED = [
    ({"model": "gpt"}, "--model gpt cannot learn from images"),
    ({"model": "rnn"}, "--model rnn reads images with one channel, row by row, not 3 × 8 × 6"),
    ({"damaged": "skip", "strategy": "server", "ranks": 2}, "--damaged skip and --strategy server"),
    ({"dataset": "digits"}, "--dataset digits exclude each other"),
    ({"cache_mb": 1.0, "reader_kind": "processes"}, "--cache-mb 1 and --reader-kind processes"),
    ({"stage_mb": 1.0}, "--stage-mb 1.0 means nothing"),
    ({"keep_staged": True}, "--keep-staged means nothing"),
    ({"checkpoint_steps": 3}, "--checkpoint-steps 3 means nothing"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_what_does_not_fit_is_told(pack: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        complete(TrainConfig.from_options(data=pack, **options), None)  # type: ignore[arg-type]


def test_readers_mean_nothing_for_data_in_memory() -> None:
    with pytest.raises(UserError, match="--readers 3 means nothing"):
        complete(TrainConfig.from_options(dataset="digits", readers=3), None)


def test_a_folder_that_is_no_pack_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no train/index\.json in it"):
        complete(TrainConfig.from_options(data=tmp_path), None)
