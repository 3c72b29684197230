"""What a device calculates, on CPU tensors, against the oracle of the kernels."""

import itertools

import pytest
import torch

from phalanx.comm import array_kernels
from phalanx.comm.dtypes import DTYPES, ReduceOp, check_operation
from phalanx.torch_backend.device_memory import DeviceMemory, can_reduce, reduce_tensors, tensor_of
from phalanx.torch_backend.tensors import buffer_of

COUNT = 257


def values(dtype: torch.dtype, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(COUNT, dtype=torch.complex64, generator=generator).to(dtype)
    low, high = (0, 2) if dtype == torch.bool else (-(2**7), 2**7)
    return torch.randint(low, high, (COUNT,), generator=generator).to(dtype)


def cases() -> list[tuple[torch.dtype, ReduceOp, float]]:
    found = []
    for (name, dtype), op in itertools.product(DTYPES.items(), ReduceOp):
        try:
            check_operation(dtype, op)
        except TypeError:
            continue
        if not can_reduce(getattr(torch, name)):
            continue
        divisors = (1.0, 3.0) if op is ReduceOp.SUM else (1.0,)
        found += [(getattr(torch, name), op, divisor) for divisor in divisors]
    return found


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize(("dtype", "op", "divisor"), cases(), ids=str)
@pytest.mark.parametrize("target", [0, 1, None])
def test_the_same_bits_as_the_kernels(
    dtype: torch.dtype, op: ReduceOp, divisor: float, target: int | None
) -> None:
    terms = [values(dtype, number) for number in range(3)]
    truth = torch.empty(COUNT, dtype=dtype)
    array_kernels.reduce_terms([buffer_of(t) for t in terms], buffer_of(truth), op, divisor)
    kept = [term.clone() for term in terms]
    result = torch.empty(COUNT, dtype=dtype) if target is None else terms[target]
    reduce_tensors(terms, result, op, divisor)
    if dtype.is_complex:
        torch.testing.assert_close(result, truth)
    else:
        assert torch.equal(result, truth)
    for term, before in zip(terms, kept, strict=True):
        assert term is result or torch.equal(term, before)


def test_what_is_left_to_the_cpu() -> None:
    left = {name for name in DTYPES if not can_reduce(getattr(torch, name))}
    assert left == {"uint16", "uint32", "uint64"}


def test_buffers_are_seen_as_tensors() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)[1:]
    part = buffer_of(tensor).part(2, 5)
    assert tensor_of(part).tolist() == [6, 7, 8]
    tensor_of(part).zero_()
    assert tensor[0].tolist() == [4, 5, 0, 0]
    assert tensor_of(buffer_of(torch.tensor(3.0))).tolist() == [3]
    assert tensor_of(buffer_of(torch.empty(0, 3))).shape == (0,)
    assert tensor_of(part.part(3, 3)).shape == (0,)


def test_memory_of_a_device() -> None:
    memory = DeviceMemory(torch.device("cpu"), None)
    scratch = memory.scratch(3, DTYPES["bfloat16"])
    tensor = torch.tensor([1, 2, 3], dtype=torch.bfloat16)
    memory.copy(buffer_of(tensor), scratch)
    assert tensor_of(scratch).tolist() == [1, 2, 3]
    memory.reduce_terms([scratch, buffer_of(tensor)], scratch, ReduceOp.SUM, 2.0)
    assert tensor_of(scratch).tolist() == [1, 2, 3]
