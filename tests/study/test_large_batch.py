"""The runs of the large-batch study."""

import pytest

from phalanx.errors import UserError
from phalanx.study.large_batch import REMEDIES, LargeBatchConfig, cells, runs_of


def test_at_the_first_batch_there_is_nothing_to_remedy() -> None:
    study = LargeBatchConfig(batch_sizes=(128, 4096))
    assert list(cells(study)) == [
        (128, "plain"), (128, "lars"), (128, "lamb"), *((4096, name) for name in REMEDIES),
    ]  # fmt: skip


def test_the_base_recipe_is_there_whatever_is_asked_for() -> None:
    study = LargeBatchConfig(batch_sizes=(128, 256), remedies=("linear",), seeds=(0,))
    assert [run.name for run in runs_of(study)] == ["plain-b128-s0", "linear-b256-s0"]


def test_remedies_differ_in_what_they_are_named_for_alone() -> None:
    study = LargeBatchConfig(batch_sizes=(128, 1024), seeds=(3,), epochs=8)
    runs = {run.name: run.config for run in runs_of(study)}
    linear, warm = runs["linear-b1024-s3"], runs["linear-warmup-b1024-s3"]
    assert linear.learning_rate(1024) == warm.learning_rate(1024) == pytest.approx(8 * study.lr)
    assert (linear.warmup_epochs, warm.warmup_epochs) == (0.0, 2.0)
    assert runs["sqrt-warmup-b1024-s3"].learning_rate(1024) == pytest.approx(8**0.5 * study.lr)
    assert runs["plain-b1024-s3"].learning_rate(1024) == study.lr
    assert runs["lars-b1024-s3"].clip_norm is None
    assert {c.label_smoothing for c in runs.values()} == {study.label_smoothing}
    assert {(c.seed, c.epochs, c.model, c.strategy) for c in runs.values()} == {
        (3, 8, "mlp", "sequential")
    }


def test_a_full_study_has_five_seeds_and_all_batches() -> None:
    runs = runs_of(LargeBatchConfig(full=True), 60_000)
    assert len(runs) == 5 * (3 + 6 * 6)
    assert {run.config.batch_size for run in runs} == {128, 512, 1024, 2048, 4096, 8192, 16384}
    assert [run.config.seed for run in runs] == sorted(run.config.seed for run in runs)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(UserError, match="8192 exceeds the 4096 training samples"):
        runs_of(LargeBatchConfig(train_samples=4096), 60_000)
