"""The kernels in C against the array operations, element by element; no MPI."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.comm import array_kernels, kernels
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import BFLOAT16, DTYPES, DType, ReduceOp, check_operation

NOT_BUILT = pytest.mark.skipif(kernels.compiled() is None, reason="no C kernels were built")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
def test_kernels_are_built_where_there_is_a_compiler() -> None:
    """They are optional, so installation says nothing when they do not compile; once a missing
    declaration went unnoticed that way, and the tests ran on what had been built before."""
    assert kernels.compiled() is not None


def allowed(dtype: DType, op: ReduceOp) -> bool:
    try:
        check_operation(dtype, op)
    except TypeError:
        return False
    return True


CASES = [(dtype, op) for dtype in DTYPES.values() for op in ReduceOp if allowed(dtype, op)]


def some_bytes(dtype: DType, count: int, seed: int) -> np.ndarray:
    """(count * itemsize,) bytes: any bits at all, but for bool, which is 0 or 1."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, count, np.uint8)
    if dtype.kind == "complex":  # no infinities: their products are NaN in one part or in both
        real = np.float32 if dtype.itemsize == 8 else np.float64
        return rng.standard_normal(2 * count).astype(real).view(np.uint8)
    return rng.integers(0, 256, count * dtype.itemsize, np.uint8)


def buffer(memory: np.ndarray, dtype: DType) -> Buffer:
    return Buffer(memory.ctypes.data, memory.size // dtype.itemsize, dtype, memory)


def same_values(a: np.ndarray, b: np.ndarray, dtype: DType) -> bool:
    """Equal values, or NaN in both: which NaN is not promised."""
    if dtype is BFLOAT16:
        a, b = ((x.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for x in (a, b))
    else:
        a, b = a.view(dtype.numpy), b.view(dtype.numpy)
    if dtype.kind == "complex":  # NumPy may fuse multiplication and addition
        return np.allclose(a, b, rtol=4 * np.finfo(a.dtype).eps, atol=1e-6)
    different = (a != b) & ~((a != a) & (b != b))
    return not different.any()


@NOT_BUILT
@pytest.mark.parametrize(("dtype", "op"), CASES, ids=lambda x: getattr(x, "name", None))
@pytest.mark.parametrize("num_terms", [1, 2, 3, 5])
def test_c_and_arrays_agree(dtype: DType, op: ReduceOp, num_terms: int) -> None:
    for count in (0, 1, 7, 1000, 8193):
        terms = [some_bytes(dtype, count, seed) for seed in range(num_terms)]
        for divisor in (1.0, 3.0) if op is ReduceOp.SUM else (1.0,):
            outputs = []
            for reduce_terms in (kernels.reduce_terms, array_kernels.reduce_terms):
                output = np.empty(count * dtype.itemsize, np.uint8)
                with np.errstate(all="ignore"):
                    reduce_terms(
                        [buffer(t, dtype) for t in terms], buffer(output, dtype), op, divisor
                    )
                outputs.append(output)
            assert same_values(*outputs, dtype), f"{count} elements divided by {divisor}"


@NOT_BUILT
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_half_survives_and_every_sum_is_rounded_once(name: str) -> None:
    """All 65,536 halves, alone and added to a few others."""
    dtype = DTYPES[name]
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    for other in (0x0000, 0x0001, 0x3C00, 0x8001, 0x7BFF, 0x0400):
        terms = [every, np.full(1 << 16, other, np.uint16)]
        outputs = [np.empty(1 << 16, np.uint16) for _ in range(2)]
        for output, module in zip(outputs, (kernels, array_kernels), strict=True):
            module.reduce_terms(
                [buffer(t.view(np.uint8), dtype) for t in terms],
                buffer(output.view(np.uint8), dtype),
                ReduceOp.SUM,
            )
        assert same_values(outputs[0].view(np.uint8), outputs[1].view(np.uint8), dtype)


@NOT_BUILT
@given(st.integers(2, 6), st.integers(0, 5000), st.integers(0, 5))
def test_the_output_may_be_any_term(num_terms: int, count: int, which: int) -> None:
    rng = np.random.default_rng(count)
    terms = [rng.standard_normal(count).astype(np.float32) for _ in range(num_terms)]
    expected = terms[0]
    for term in terms[1:]:
        expected = expected + term
    output = terms[which % num_terms]
    kernels.reduce_terms([Buffer.of(t) for t in terms], Buffer.of(output), ReduceOp.SUM)
    assert output.tobytes() == expected.tobytes()


def test_arrays_are_used_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "arrays")
    assert kernels.compiled() is None
    terms = [Buffer.of(np.arange(4, dtype=np.int64)) for _ in range(3)]
    kernels.reduce_terms(terms, terms[0], ReduceOp.SUM)
    assert terms[0].array().tolist() == [0, 3, 6, 9]


@NOT_BUILT
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@given(count=st.integers(0, 5000), seed=st.integers(0, 99), divisor=st.sampled_from([1.0, 3.0]))
def test_half_types_come_and_go(name: str, count: int, seed: int, divisor: float) -> None:
    dtype = DTYPES[name]
    halves = buffer(some_bytes(dtype, count, seed), dtype)
    wide = [Buffer.of(np.zeros(count, np.float32)) for _ in range(2)]
    kernels.widen(halves, wide[0])
    array_kernels.widen(halves, wide[1])
    assert np.array_equal(wide[0].array(), wide[1].array(), equal_nan=True)
    any_floats = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    results = [np.zeros(2 * count, np.uint8) for _ in range(2)]
    kernels.narrow(Buffer.of(any_floats.copy()), buffer(results[0], dtype), divisor)
    array_kernels.narrow(Buffer.of(any_floats), buffer(results[1], dtype), divisor)
    assert same_values(*results, dtype)


@NOT_BUILT
@pytest.mark.parametrize("count", [5, 5000])
def test_denormal_numbers_count_where_the_processor_would_drop_them(count: int) -> None:
    """Half of the gradients in float16 are below its smallest normal number."""
    small = np.resize(np.array([1e-5, 3e-5, -6e-8, 1e-3], np.float16), count)
    tiny = np.resize(np.array([1e-40, -3e-42], np.float32), count)
    expected = [small + small, tiny + tiny]
    assert torch.set_flush_denormal(True), "this processor can do it"
    try:
        assert torch.tensor([1e-40]).mul(2).item() == 0.0
        for values, doubled in zip((small, tiny), expected, strict=True):
            out = np.empty_like(values)
            kernels.reduce_terms([Buffer.of(values)] * 2, Buffer.of(out), ReduceOp.SUM)
            assert out.tobytes() == doubled.tobytes()
        wide = np.empty(count, np.float32)
        kernels.widen(Buffer.of(small), Buffer.of(wide))
        assert wide.tobytes() == small.astype(np.float32).tobytes()
        assert torch.tensor([1e-40]).mul(2).item() == 0.0, "it is left as it was"
    finally:
        torch.set_flush_denormal(False)
