"""What stands in the buffers: against NumPy on the buffers of all ranks, and with faults."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phalanx.bench.call_schedule import Case, cases
from phalanx.bench.pattern import (
    PERIOD,
    Pattern,
    count_wrong,
    input_count,
    output_count,
    storage_type,
)
from phalanx.comm.dtypes import DTYPES, ReduceOp
from phalanx.records.collectives import Collective

COUNT = 3 * 2 * (PERIOD + 5)  # cut by 2 and by 3 ranks, parts longer than the period
Array = NDArray[Any]


def case_of(collective: Collective, ranks: int, dtype: str = "float32") -> Case:
    itemsize = DTYPES[dtype].itemsize
    return cases([collective], [COUNT * itemsize], itemsize=itemsize, ranks=ranks)[0]


def patterns(case: Case, ranks: int, dtype: str, op: ReduceOp) -> list[Pattern]:
    return [
        Pattern(case, rank=rank, ranks=ranks, dtype=DTYPES[dtype], op=op) for rank in range(ranks)
    ]


def inputs_of(made: list[Pattern], case: Case, dtype: str, call: int) -> list[Array]:
    arrays = [np.zeros(input_count(case, len(made)), storage_type(DTYPES[dtype])) for _ in made]
    for pattern, array in zip(made, arrays, strict=True):
        pattern.fill(array, call)
    return arrays


def results(collective: Collective, inputs: list[Array], rank: int) -> Array:
    """The collective by its definition."""
    ranks = len(inputs)
    if collective == "broadcast":
        return inputs[0]
    if collective == "all_gather":
        return np.concatenate(inputs)
    cut = [np.split(array, ranks) for array in inputs]
    if collective == "all_to_all":
        return np.concatenate([cut[peer][rank] for peer in range(ranks)])
    total = np.sum(inputs, axis=0, dtype=inputs[0].dtype)
    return total if collective == "all_reduce" else np.split(total, ranks)[rank]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    "collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]
)
def test_what_is_expected_is_the_collective_by_its_definition(
    collective: Collective, ranks: int
) -> None:
    case = case_of(collective, ranks)
    made = patterns(case, ranks, "float32", ReduceOp.SUM)
    for call in range(3):
        inputs = inputs_of(made, case, "float32", call)
        for rank, pattern in enumerate(made):
            found = results(collective, inputs, rank)
            assert found.size == output_count(case, ranks)
            assert pattern.count_wrong(found, call) == 0


@pytest.mark.parametrize("op", list(ReduceOp))
def test_every_operation(op: ReduceOp) -> None:
    dtype = "int32"
    case = case_of("all_reduce", 3, dtype)
    made = patterns(case, 3, dtype, op)
    first, second, third = inputs_of(made, case, dtype, 0)
    combine = {
        ReduceOp.SUM: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
        ReduceOp.BAND: np.bitwise_and,
        ReduceOp.BOR: np.bitwise_or,
        ReduceOp.BXOR: np.bitwise_xor,
    }[op]
    assert made[1].count_wrong(combine(combine(first, second), third), 0) == 0


def test_bfloat16_is_checked_by_its_bits() -> None:
    case = case_of("all_reduce", 2, "bfloat16")
    made = patterns(case, 2, "bfloat16", ReduceOp.SUM)
    inputs = inputs_of(made, case, "bfloat16", 1)
    values = [(array.astype(np.uint32) << 16).view(np.float32) for array in inputs]
    total = ((values[0] + values[1]).view(np.uint32) >> 16).astype(np.uint16)
    assert made[0].count_wrong(total, 1) == 0
    assert made[0].count_wrong(inputs[0], 1) == case.count


def test_each_wrong_element_is_counted() -> None:
    case = case_of("all_reduce", 2)
    made = patterns(case, 2, "float32", ReduceOp.SUM)
    total = np.sum(inputs_of(made, case, "float32", 0), axis=0)
    for place in (0, PERIOD - 1, PERIOD, case.count - 1):
        total[place] += 1
    assert made[0].count_wrong(total, 0) == 4
    total[7] = np.nan
    assert made[0].count_wrong(total, 0) == 5


def test_results_of_the_last_call_and_untouched_buffers_are_wrong() -> None:
    case = case_of("all_reduce", 2)
    made = patterns(case, 2, "float32", ReduceOp.SUM)
    total = np.sum(inputs_of(made, case, "float32", 0), axis=0)
    assert made[0].count_wrong(total, 1) > 0.8 * case.count
    assert made[0].count_wrong(inputs_of(made, case, "float32", 0)[0], 0) == case.count


def test_parts_that_were_mixed_up_are_wrong() -> None:
    case = case_of("all_gather", 2)
    made = patterns(case, 2, "float32", ReduceOp.SUM)
    first, second = inputs_of(made, case, "float32", 0)
    assert made[0].count_wrong(np.concatenate([second, first]), 0) > 0.8 * case.count
    shifted = np.roll(np.concatenate([first, second]), 1024)
    assert made[0].count_wrong(shifted, 0) > 0.5 * case.count


def test_the_tile_goes_on_from_where_the_part_begins() -> None:
    tile = np.arange(PERIOD)
    whole = np.concatenate([tile, tile, tile])
    assert count_wrong(whole[5 : 2 * PERIOD + 9], tile, 5) == 0
    assert count_wrong(whole[5:50], tile, 4) == 45
