import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.comm.buffer import Buffer
from phalanx.comm.kernels import VARIABLE, compiled
from phalanx.gradients.compression.coding import BLOCK, add_int8, encode_int8, select_largest

FLOATS = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True), st.sampled_from([0.0, 1.0, -1.0])
)
SOME = st.lists(FLOATS, min_size=1, max_size=3 * BLOCK).map(lambda v: np.array(v, np.float32))

LARGEST = float(np.finfo(np.float32).max)
KERNELS = ["compiled", "arrays"]


def coded(values: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales, codes, what is kept then."""
    scales = np.empty(-(-len(values) // BLOCK), np.float32)
    codes, left = np.empty(len(values), np.int8), kept.copy()
    encode_int8(*(Buffer.of(a) for a in (values, left, scales, codes)))
    return scales, codes, left


def largest(values: np.ndarray, count: int) -> np.ndarray:
    positions = np.empty(count, np.int32)
    select_largest(Buffer.of(values), Buffer.of(positions))
    return positions


@pytest.mark.skipif(compiled() is None, reason="the kernels were not built")
@given(values=SOME)
@example(values=np.array([0.0, LARGEST], np.float32))
@settings(max_examples=60, deadline=None)
def test_both_kinds_of_kernels_make_the_same_bits(values: np.ndarray) -> None:
    kept = values[::-1] / np.float32(7)
    kept[~np.isfinite(kept)] = 0
    results = []
    for kind in KERNELS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, kind)
            made = coded(values, kept)
            total = np.ones_like(values)
            add_int8(*(Buffer.of(a) for a in (*made[:2], total)), adds=True)
            results.append([*made, total, largest(values, -(-len(values) // 3))])
    for fast, plain in zip(*results, strict=True):
        np.testing.assert_array_equal(fast, plain)


@pytest.mark.parametrize("kind", KERNELS)
def test_what_is_kept_is_what_is_missing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, kind)
    generator = np.random.default_rng(0)
    values = generator.standard_normal(3 * BLOCK + 17).astype(np.float32)
    scales, codes, left = coded(values, np.zeros_like(values))
    told = np.empty_like(values)
    add_int8(*(Buffer.of(a) for a in (scales, codes, told)), adds=False)
    np.testing.assert_allclose(told + left, values, rtol=0, atol=1e-6)
    assert np.abs(left[:BLOCK]).max() <= np.abs(values[:BLOCK]).max() / 254 * 1.001


@pytest.mark.parametrize("kind", KERNELS)
def test_the_largest_number_comes_back_finite(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, kind)
    values = np.array([LARGEST, -LARGEST, LARGEST / 2], np.float32)
    scales, codes, left = coded(values, np.zeros_like(values))
    told = np.empty_like(values)
    add_int8(*(Buffer.of(a) for a in (scales, codes, told)), adds=False)
    np.testing.assert_allclose(told, values, rtol=0.01)
    np.testing.assert_allclose(told.astype(float) + left, values, rtol=1e-6)


@pytest.mark.parametrize("kind", KERNELS)
def test_the_largest_come_in_order_and_of_equal_ones_the_first(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, kind)
    values = np.array([1, -2, 2, np.nan, 2, -np.inf, 0], np.float32)
    assert largest(values, 1).tolist() == [3]
    assert largest(values, 3).tolist() == [1, 3, 5]
    assert largest(values, 4).tolist() == [1, 2, 3, 5]
    assert largest(values, 7).tolist() == list(range(7))
