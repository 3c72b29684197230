"""What ranks did last with each other: merged from two logs, and written when one of
them hangs or raises."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.comm.collective import Call
from phalanx.comm.compiled import kernel_names
from phalanx.comm.flight_recorder import MAX_LOGGED, LoggedCall, merge_logs
from phalanx.comm.shm import ShmGroup
from phalanx.records.last_collectives import (
    DUMP_DIR,
    LastCall,
    describe_stuck_ranks,
    read_last_collectives,
)
from tests.conftest import Programs, Ranks

# How a collective goes: by the kernels alone, logged by both, or by messages.
WAYS = ("fast", "both", "messages")


def notes_of(ways: list[str], *, is_done: bool) -> tuple[list[LoggedCall], int, list[LastCall]]:
    """What would have been logged of collectives that went these ways."""
    logged, kernels, finished = [], list[LastCall](), 0
    for number, way in enumerate(ways, 1):
        name = "all_reduce" if way == "fast" else "reduce"
        if way != "fast":
            logged.append(LoggedCall(number, Call(name), way, way == "both", number))
            finished = number if number < len(ways) or is_done else finished
        if way != "messages":
            kernels.append(
                LastCall(
                    number=len(kernels) + 1,
                    name=name,
                    call=f"{name}()",
                    way="shared memory",
                    began_ns=number,
                    is_done=number < len(ways) or is_done,
                )
            )
    return logged[-MAX_LOGGED:], finished, kernels[-MAX_LOGGED:]


@given(st.lists(st.sampled_from(WAYS), max_size=600), st.booleans())
def test_both_notebooks_give_the_order_of_all(ways: list[str], is_done: bool) -> None:
    logged, finished, kernels = notes_of(ways, is_done=is_done)
    calls = merge_logs(len(ways), logged, finished, kernels)
    assert [call.number for call in calls] == list(range(len(ways) - len(calls) + 1, len(ways) + 1))
    assert len(calls) <= MAX_LOGGED
    for call in calls:
        assert call.name == ("all_reduce" if ways[call.number - 1] == "fast" else "reduce")
        assert call.began_ns == call.number
        assert call.is_done == (is_done or call.number < len(ways))
    kept = min(len(ways), MAX_LOGGED)
    assert len(calls) == kept


def test_rounds_that_no_group_numbers() -> None:
    kind = kernel_names("KINDS").index("fused_step")
    logged = (300, 299, [(kind, 0, began_ns) for began_ns in range(45, 301)])
    shm = ShmGroup.__new__(ShmGroup)
    shm._handle, shm._module = None, SimpleNamespace(logged_calls=lambda _: logged)
    calls = shm.last_calls()
    assert (calls[0].number, calls[-1].number) == (45, 300)
    assert [call.is_done for call in calls[-2:]] == [True, False]


@pytest.mark.mpi
def test_a_rank_that_hangs_is_found_by_what_it_did_last(
    ranks: Ranks,
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DUMP_DIR, str(tmp_path))
    output = ranks.mpi(3, programs("last.py"), may_fail=True)
    assert "notes are right" in output
    assert f"(its last collectives: {tmp_path}/last-collectives-" in output
    found = read_last_collectives(tmp_path)
    assert set(found) >= {0, 1}
    assert "waited 1 s in all_reduce number" in found[0].reason or "failed" in found[0].reason
    world = {rank: last.groups[0] for rank, last in found.items()}
    assert world[0].calls[-1].is_done is False
    assert world[0].calls[-1].call == "all_reduce(float32, 1 elements, SUM)"
    said = describe_stuck_ranks(found)
    assert said is not None
    if 2 in found:  # it was given the time to say it
        assert "rank 2 is 1 collective behind: it last finished all_reduce number" in said
    else:
        assert "rank 2 left no record; rank 0, 1 waited in all_reduce number" in said
