"""What is not finite is found by the C kernels, wherever it lies and whatever its bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.comm import kernels
from phalanx.comm.dtypes import DTYPES

pytestmark = pytest.mark.skipif(kernels.compiled() is None, reason="no C kernels were built")

# The bits of a sign, of the exponent and of what follows it.
LAYOUTS = {
    "float16": (16, 5),
    "bfloat16": (16, 8),
    "float32": (32, 8),
    "float64": (64, 11),
    "complex64": (32, 8),
    "complex128": (64, 11),
}


def found(values: np.ndarray, dtype: str, itemsize: int) -> bool:
    module = kernels.compiled()
    assert module is not None
    count = values.nbytes // itemsize
    return bool(module.are_finite([values.ctypes.data], [count], DTYPES[dtype].code))


@given(
    dtype=st.sampled_from(sorted(LAYOUTS)),
    count=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_any_bits(dtype: str, count: int, seed: int, data: st.DataObject) -> None:
    """A number is finite when its exponent is not all ones; the sign and the rest may be any."""
    num_bits, num_exponent = LAYOUTS[dtype]
    unsigned = np.dtype(f"uint{num_bits}")
    per_value = 2 if dtype.startswith("complex") else 1
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**num_bits, count * per_value, unsigned)
    ones = (1 << (num_bits - 1)) - (1 << (num_bits - 1 - num_exponent))
    lowest = unsigned.type(1 << (num_bits - 1 - num_exponent))
    bits[(bits & unsigned.type(ones)) == ones] ^= lowest
    itemsize = per_value * unsigned.itemsize
    assert found(bits, dtype, itemsize)
    bits[data.draw(st.integers(0, len(bits) - 1))] |= unsigned.type(ones)
    assert not found(bits, dtype, itemsize)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_integers_are_finite(dtype: str) -> None:
    assert found(np.full(100, -1).astype(dtype), dtype, np.dtype(dtype).itemsize)


def test_each_of_several_vectors_is_looked_through() -> None:
    module = kernels.compiled()
    assert module is not None
    good, bad = np.ones(70, np.float32), np.ones(70, np.float32)
    bad[69] = np.nan
    code = DTYPES["float32"].code
    for vectors in ([good, bad], [bad, good]):
        assert not module.are_finite([v.ctypes.data for v in vectors], [70, 70], code)
    assert module.are_finite([good.ctypes.data, bad.ctypes.data], [70, 69], code)
    assert module.are_finite([], [], code)
    with pytest.raises(ValueError, match="2 addresses, 1 counts"):
        module.are_finite([good.ctypes.data, bad.ctypes.data], [70], code)
