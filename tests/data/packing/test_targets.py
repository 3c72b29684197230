"""Targets that cannot be meant are refused with the place and the option that says how they are."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.packing.targets import TargetLocations, labelled, parse_targets
from phalanx.errors import UserError

PLACES = TargetLocations("t.csv", lambda i: f"t.csv row {i + 2}")


def parsed(words: Sequence[str], num_classes: int | None = None) -> tuple[list[float], list[str]]:
    targets, classes = labelled(parse_targets(words, PLACES), PLACES, num_classes)
    return targets.tolist(), classes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "", "b"], "t.csv row 3: there is no target"),
        (["a", "b", "nan"], "t.csv row 4: the target is 'nan'"),
        (["0.5", "nan", "1.5"], "t.csv row 3: the target is 'nan'"),
        (["0.5", "n/a"], "t.csv row 3: the target 'n/a' is not a finite number"),
        (["0.5", "1e999"], "t.csv row 3: the target '1e999' is not a finite number"),
        (["0.5", "cat"], "t.csv row 3: the target 'cat' is not a finite number"),
        (["1", "2", "?"], "t.csv row 4: the target '\\?' is not a finite number"),
        (["0", "9" * 30], "t.csv row 3: the target 9{30} is out of range"),
        (["0", "9" * 30_000], "t.csv row 3: '9{20}'… of 30,000 letters"),
        ([str(i) for i in range(1001)], "targets go up to 1,000\nuse --classes 1001 if"),
        ([f"id{i}" for i in range(1001)], "1,001 different values\nuse --classes 1001 if"),
        (["1", "2", "4"], "targets go up to 4, and no sample has 0, 3\nuse --classes 5 if"),
        (["0", str(2**62)], "targets go up to"),
        (["0.5", "1e300"], "row 3: the target is 1e\\+300, not a finite number of float32"),
    ],
)
def test_what_cannot_be_meant(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parsed(words)


@pytest.mark.parametrize(
    ("words", "num_classes", "message"),
    [
        (["0", "4"], 4, "row 3: the target is 4, not one of 4 classes"),
        (["a", "b"], 3, "targets have 2 different values, not 3"),
        (["0.5", "1"], 2, "targets are fractions, which are not 2 classes"),
        (["a", "b"], 0, "the target 'a' is text, not a quantity"),
    ],
)
def test_what_does_not_fit_what_is_said(words: list[str], num_classes: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parsed(words, num_classes)


def test_what_is_meant() -> None:
    assert parsed(["2", "0", "1"]) == ([2, 0, 1], ["0", "1", "2"])
    assert parsed(["--5", "0"]) == ([0, 1], ["--5", "0"])
    assert parsed(["1a", "2"]) == ([0, 1], ["1a", "2"])
    assert parsed(["-1", "1"]) == ([0, 1], ["-1", "1"])
    assert parsed(["1", "3"], 5) == ([1, 3], ["0", "1", "2", "3", "4"])
    assert parsed(["1.0", "0.0"], 2) == ([1, 0], ["0", "1"])
    assert parsed([str(i) for i in range(1200)], 1200)[0][-1] == 1199
    assert parsed(["89881", "12000"], 0) == ([89881.0, 12000.0], [])
    assert parsed(["0.370", " 0.740"]) == ([np.float32(0.37), np.float32(0.74)], [])
    targets, classes = labelled(np.array([[5, 6], [7, 8]]), PLACES)
    assert (targets.shape, len(classes)) == ((2, 2), 9), "a text's vocabulary has gaps"
    with pytest.raises(UserError, match="row 3: the target is not all, not a finite"):
        labelled(np.array([[1.0, 2], [3, np.nan]]), PLACES)
    with pytest.raises(UserError, match="row 2: the target 18446744073709551615 is out of range"):
        labelled(np.array([2**64 - 1, 0], np.uint64), PLACES)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=6), st.none() | st.integers(0, 9))
def test_any_words_are_targets_or_refused(words: list[str], num_classes: int | None) -> None:
    try:
        targets, classes = parsed(words, num_classes)
    except UserError:
        return
    assert len(targets) == len(words)
    assert np.isfinite(targets).all()
    if classes and num_classes is None:
        assert sorted(set(targets)) == list(range(len(classes))), "each has a sample"
