"""Reductions in NumPy against Python's own numbers and PyTorch's rounding; no MPI."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.comm import array_kernels
from phalanx.comm.array_kernels import reduce_terms
from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import BFLOAT16, DTYPES, FLOAT16, FLOAT32, DType, ReduceOp, opaque

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def of_bits(bits: np.ndarray, dtype: DType) -> Buffer:
    return Buffer(bits.ctypes.data, bits.size, dtype, bits)


def of_tensor(tensor: torch.Tensor) -> Buffer:
    dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
    return Buffer(tensor.data_ptr(), tensor.numel(), dtype, tensor)


@pytest.mark.parametrize("name", HALVES)
def test_every_half_survives(name: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide, back = np.zeros(2**16, np.float32), np.zeros(2**16, np.uint16)
    array_kernels.widen(of_bits(bits, DTYPES[name]), Buffer.of(wide))
    expected = torch.from_numpy(bits.view(np.int16).copy()).view(HALVES[name]).float().numpy()
    assert np.array_equal(wide, expected, equal_nan=True)
    array_kernels.narrow(Buffer.of(wide), of_bits(back, DTYPES[name]))
    numbers = ~np.isnan(expected)
    assert np.array_equal(back[numbers], bits[numbers])
    array_kernels.widen(of_bits(back, DTYPES[name]), Buffer.of(wide))
    assert np.isnan(wide[~numbers]).all(), "a NaN became a number"


@pytest.mark.parametrize("name", HALVES)
def test_rounding_is_that_of_pytorch(name: str) -> None:
    random = np.random.default_rng(1)
    wide = random.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    wide = np.concatenate([wide, np.arange(2**16, dtype=np.uint32).view(np.float32)])
    half = torch.empty(wide.size, dtype=HALVES[name])
    array_kernels.narrow(Buffer.of(wide), of_tensor(half))
    expected = torch.from_numpy(wide).to(HALVES[name])
    assert torch.equal(half.isnan(), expected.isnan())
    assert torch.equal(half.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_halves_are_summed_wide_and_rounded_once(dtype: DType, divisor: float) -> None:
    terms = [torch.randn(1000).to(HALVES[dtype.name]) for _ in range(5)]
    output = torch.empty_like(terms[0])
    reduce_terms([of_tensor(t) for t in terms], of_tensor(output), ReduceOp.SUM, divisor)
    total = terms[0].float()
    for term in terms[1:]:
        total = total + term.float()
    assert torch.equal(output, (total / divisor).to(output.dtype))


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_nan_stays(op: ReduceOp, dtype: torch.dtype) -> None:
    terms = [torch.tensor([1, math.nan, 3], dtype=dtype), torch.tensor([math.nan, 2, 4]).to(dtype)]
    for order in (terms, terms[::-1]):
        output = torch.zeros(3, dtype=dtype)
        reduce_terms([of_tensor(t) for t in order], of_tensor(output), op)
        assert output.isnan().tolist() == [True, True, False]
        assert output[2] == (3 if op == ReduceOp.MIN else 4)


@given(
    name=st.sampled_from([name for name, dtype in DTYPES.items() if dtype.kind == "int"]),
    divisor=st.sampled_from([1.0, 2.0, 3.0, 2.5, 127.0, 1e9]),
    data=st.data(),
)
def test_integers_wrap_and_are_divided_towards_zero(
    name: str, divisor: float, data: st.DataObject
) -> None:
    info = np.iinfo(name)
    numbers = data.draw(st.lists(st.integers(info.min, info.max), min_size=1, max_size=4))
    output = np.zeros(1, name)
    terms = [Buffer.of(np.array([number], name)) for number in numbers]
    reduce_terms(terms, Buffer.of(output), ReduceOp.SUM, divisor)
    total = (sum(numbers) - info.min) % 2**info.bits + info.min
    if divisor.is_integer():
        expected = abs(total) // int(divisor) * (1 if total >= 0 else -1)
    else:
        expected = math.trunc(total / divisor)
    assert output[0] == expected


@pytest.mark.parametrize(
    ("op", "truth"),
    [
        *((op, [False, False, False, True]) for op in (ReduceOp.PRODUCT, ReduceOp.MIN)),
        *((op, [False, True, True, True]) for op in (ReduceOp.MAX, ReduceOp.BOR)),
        (ReduceOp.BAND, [False, False, False, True]),
        (ReduceOp.BXOR, [False, True, True, False]),
    ],
)
def test_truth_values(op: ReduceOp, truth: list[bool]) -> None:
    terms = [np.array([False, False, True, True]), np.array([False, True, False, True])]
    output = np.zeros(4, bool)
    reduce_terms([Buffer.of(term) for term in terms], Buffer.of(output), op)
    assert output.tolist() == truth


def test_complex_numbers() -> None:
    terms = [np.array([1 + 2j, 3j]), np.array([2 - 1j, 1 + 1j])]
    output = np.zeros(2, complex)
    buffers = [Buffer.of(term) for term in terms]
    reduce_terms(buffers, Buffer.of(output), ReduceOp.SUM, 2.0)
    assert output.tolist() == [1.5 + 0.5j, 0.5 + 2j]
    reduce_terms(buffers, Buffer.of(output), ReduceOp.PRODUCT)
    assert output.tolist() == [4 + 3j, -3 + 3j]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_output_may_be_a_term(place: int) -> None:
    count = array_kernels.CHUNK_BYTES // 4 * 2 + 5  # more than two chunks
    terms = [np.random.default_rng(i).standard_normal(count).astype(np.float32) for i in range(3)]
    truth = terms[0] + terms[1] + terms[2]
    buffers = [Buffer.of(term) for term in terms]
    reduce_terms(buffers, buffers[place], ReduceOp.SUM)
    assert terms[place].tobytes() == truth.tobytes()


def test_what_has_no_reduction() -> None:
    with pytest.raises(TypeError, match="bool has no reduction SUM; it has PRODUCT, MIN, MAX"):
        reduce_terms([Buffer.of(np.zeros(1, bool))], Buffer.of(np.zeros(1, bool)), ReduceOp.SUM)
    with pytest.raises(TypeError, match="it can only be moved"):
        moved = of_bits(np.zeros(1, np.uint16), opaque("float8_e4m3fn", 1))
        reduce_terms([moved], moved, ReduceOp.SUM)
    assert not FLOAT32.is_half
