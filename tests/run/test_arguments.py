"""Whatever `phalanx.start` is given, it makes a run or says in a line what does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

import phalanx
from phalanx.run.start import WITH_OWN_CHECKS

ODD: list[Any] = [
    *(None, True, False, 0, 1, 3, -2, 2**70, 2.5, float("nan"), float("inf"), -0.5),
    *("", "auto", "x", "cpu", "none", b"x", (), ("a",), [], [1], [[1], "b"], {}, {"a": 1}, {3: 4}),
    *({"local_steps": []}, {"num_workers": "2"}, object(), len, nn.Linear, nn.ReLU(), Path("p")),
    *(np.zeros(3), np.array(2.0), np.float32(1), np.int64(4), torch.zeros(()), torch.zeros(8, 3)),
    *(torch.zeros(0, 3), slice(3), range(4), {1, 2}, iter(()), 1j, SGD, phalanx.UserError("x")),
]
NAMES = sorted(set(phalanx.start.__annotations__) - {"return", "comm", "timeout_s"})


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(ODD), min_size=1, max_size=3))
@pytest.mark.usefixtures("restored_settings")
def test_no_argument_ends_in_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """36 of 600 calls did, such as with strategy_options that are no mapping; others were taken by
    their truth, such as bitwise=object()."""
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(3, 2)
    sane = {"optimizer": SGD(model.parameters(), lr=0.1), "data": torch.randn(8, 3)}
    words = {"model": model, "batch_size": 4, **sane, **options}
    try:
        run = phalanx.start(**words)
    except phalanx.UserError as error:
        assert 0 < len(str(error)) < 600 and str(error).count("\n") < 3
    else:
        run.close()
        for name, value in options.items():
            if name in ("bitwise", "sharded"):
                assert value is None or type(value) is bool, name


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bitwise": 1}, "bitwise=1 is neither True nor False"),
        ({"records": 5}, "records=5 is not a phalanx.Records"),
        ({"checkpoints": "often"}, "checkpoints='often' is not a phalanx.Checkpoints"),
        ({"strategy_options": {"rebalance": 1}}, "rebalance=1 is neither True nor False"),
        ({"resume": []}, r"resume=\[\] is not a path"),
        ({"checkpoint_dir": True}, "checkpoint_dir=True is not a path"),
        ({"strategy_options": 3}, "strategy_options=3 is not a mapping of options"),
        ({"alternate": 3}, "alternate=3 is not a sequence of names"),
        ({"device": np.zeros(2)}, r"device=array\(\[0., 0.\]\) is not text"),
        ({"data": torch.zeros(())}, "data has a tensor without dimensions"),
    ],
)
def test_the_words(options: dict[str, Any], text: str) -> None:
    model = nn.Linear(3, 2)
    words = {"data": torch.randn(8, 3), "batch_size": 4, **options}
    with pytest.raises(phalanx.UserError, match=text):
        phalanx.start(model, SGD(model.parameters(), lr=0.1), **words)


def test_every_argument_has_a_check() -> None:
    assert set(WITH_OWN_CHECKS) <= set(phalanx.start.__annotations__)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: phalanx.Checkpoints(every_steps=0),
            "every_steps=0.: it is not a whole number from 1",
        ),
        (lambda: phalanx.Checkpoints(keep=True), "keep=True.: it is not a whole number from 1"),
        (
            lambda: phalanx.Checkpoints(every_seconds=0),
            "every_seconds=0.: it is not a finite number",
        ),
        (lambda: phalanx.Checkpoints(in_thread=float("nan")), "in_thread=nan.: it is neither True"),  # type: ignore[arg-type]
        (lambda: phalanx.Records(on_metrics=5), "on_metrics=5.: it is not a function"),  # type: ignore[arg-type]
        (lambda: phalanx.Records(trace=None), "trace=None.: it is neither True nor False"),  # type: ignore[arg-type]
    ],
)
def test_values_tell_what_is_wrong_with_them(make: Callable[[], object], text: str) -> None:
    with pytest.raises(phalanx.UserError, match=text):
        make()
