"""Which measurements the study of loading is made of."""

from typing import Any

import pytest

from phalanx.bench.io.config import IoConfig
from phalanx.study.io import IoStudyConfig, runs_of


def test_a_run_for_each_compute_time() -> None:
    study = IoStudyConfig(profiles=("resnet50", "cosmoflow"), compute_scales=(0.25, 1.0))
    planned = runs_of(study)
    assert list(planned) == [
        "resnet50-compute-0.25",
        "resnet50-compute-1",
        "cosmoflow-compute-0.25",
        "cosmoflow-compute-1",
    ]
    made: dict[str, Any] = dict(planned)
    works = {name: IoConfig(**options).workload for name, options in made.items()}
    quarter, whole = works["resnet50-compute-0.25"], works["resnet50-compute-1"]
    # The same data, so that it is written once; a step takes a quarter.
    assert quarter.num_samples == whole.num_samples
    assert quarter.sample_bytes == whole.sample_bytes == 114_660
    assert quarter.compute_s == pytest.approx(whole.compute_s / 4)
    assert whole.compute_s == pytest.approx(0.435 * 50 / 400)
    assert works["cosmoflow-compute-1"].compute_s == pytest.approx(0.00551)
