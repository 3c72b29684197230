"""The options of `phalanx bench io`."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.bench.io.config import IoConfig
from phalanx.errors import UserError

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no runs": ({"runs": 0}, "--runs must be at least 1, not 0"),
    "fewer than no readers": ({"readers": (2, -1)}, "--readers must be at least 0, not -1"),
    "no batches ahead": ({"depth": (0,)}, "--depth must be at least 1, not 0"),
    "no format": ({"formats": ()}, "--formats needs at least one value"),
    "twice": ({"readers": (1, 1)}, "--readers has a value twice: 1 1"),
    "no room": ({"data_bytes": "much"}, "--data-bytes much: not a size"),
    "little room": ({"data_bytes": "1KB"}, "--data-bytes 1KB: the minimum is 64KB"),
    "another accelerator": ({"accelerator": "v100"}, "--accelerator v100: profile resnet50 has"),
    "time backwards": ({"compute_scale": -1.0}, "--compute-scale must be positive, not -1"),
    "few samples": ({"samples": 50, "steps": 2}, "--samples 50 are fewer than --steps 2 take"),
    "an unknown profile": ({"profile": "vgg"}, "--profile vgg is not one of unet3d"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(UserError, match=message):
        IoConfig(**options)


def test_options_come_back_from_a_record() -> None:
    config = IoConfig(readers=(0, 2), data_dir=Path("d"), cache=("cold",), sample_scale=0.5)
    record = {k: list(v) if isinstance(v, tuple) else v for k, v in config.as_record().items()}
    assert IoConfig.from_record(record) == config
