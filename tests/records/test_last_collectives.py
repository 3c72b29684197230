"""Who was where when a run ended, from what ranks did last."""

from pathlib import Path

from phalanx.records.last_collectives import (
    GroupCalls,
    LastCall,
    LastCollectives,
    describe_stuck_ranks,
    last_collectives_file,
    read_last_collectives,
    write_last_collectives,
)


def calls(first: int, last: int, *, done: bool, name: str = "all_reduce") -> list[LastCall]:
    return [
        LastCall(
            number=number,
            name=name,
            call=f"{name}(float32, 10 elements, SUM)",
            way="shared memory",
            began_ns=1_000 * number,
            is_done=done or number < last,
        )
        for number in range(first, last + 1)
    ]


def last(
    rank: int, made: list[LastCall], *, group: str = "world", size: int = 3, process_id: int = 7
) -> LastCollectives:
    return LastCollectives(
        rank=rank,
        hostname="vm",
        process_id=process_id,
        written_at="2026-01-05T09:00:00Z",
        now_ns=10**9,
        reason="rank 0 waited",
        groups=[GroupCalls(group=group, members=list(range(size)), calls=made)],
    )


def by_rank(*lasts: LastCollectives) -> dict[int, LastCollectives]:
    return {each.rank: each for each in lasts}


def test_who_is_behind_is_named_with_what_it_last_finished() -> None:
    everyone = by_rank(
        last(0, calls(20, 44, done=False)),
        last(1, calls(20, 44, done=False)),
        last(2, calls(20, 41, done=True)),
    )
    assert describe_stuck_ranks(everyone) == (
        "rank 2 is 3 collectives behind: it last finished all_reduce number 41 of group world; the "
        "others are in all_reduce number 44"
    )


def test_who_is_behind_and_in_the_middle_of_one() -> None:
    everyone = by_rank(last(0, calls(1, 3, done=False)), last(1, calls(1, 2, done=False)))
    assert describe_stuck_ranks(everyone) == (
        "rank 1 is 1 collective behind: it last finished all_reduce number 1 of group world; the "
        "others are in all_reduce number 3 (rank 2 left no record)"
    )


def test_who_left_no_word_is_named() -> None:
    everyone = by_rank(last(0, calls(1, 5, done=False)), last(2, calls(1, 5, done=False)))
    assert describe_stuck_ranks(everyone) == (
        "rank 1 left no record; rank 0, 2 waited in all_reduce number 5 of group world"
    )


def test_who_waits_counts_and_not_whose_clock_is_coarse() -> None:
    """A barrier of the world that was over seemed newer than the fused step that began after it:
    the kernels' clock ticks every 4 ms. Of the rank that was gone nothing was said."""
    waiting = last(0, calls(300, 308, done=False, name="fused_step"), group="parts", size=2)
    over = last(0, calls(59, 309, done=True, name="barrier"), size=2)
    both = GroupCalls(group="world", members=[0, 1], calls=over.groups[0].calls)
    waiting.groups.append(both)
    assert describe_stuck_ranks(by_rank(waiting)) == (
        "rank 1 left no record; rank 0 waited in fused_step number 308 of group parts"
    )


def test_nothing_is_said_where_all_were_together() -> None:
    everyone = by_rank(*[last(rank, calls(1, 5, done=False)) for rank in range(3)])
    assert describe_stuck_ranks(everyone) is None
    assert describe_stuck_ranks({}) is None


def test_of_several_groups_the_newest_comes_first() -> None:
    earlier, later = calls(1, 4, done=True), calls(50, 60, done=False)
    first = last(0, earlier)
    groups = [*first.groups, *last(0, later, group="parts").groups]
    behind = [*last(1, earlier).groups, *last(1, calls(50, 59, done=True), group="parts").groups]
    everyone = {
        0: LastCollectives(**{**_fields(first), "groups": groups}),
        1: LastCollectives(**{**_fields(last(1, earlier)), "groups": behind}),
    }
    said = describe_stuck_ranks(everyone)
    assert said is not None
    assert said.startswith("rank 1 is 1 collective behind: it last finished all_reduce number 59")
    assert "of group parts" in said


def test_one_file_a_process_the_first_reason_stays(tmp_path: Path) -> None:
    write_last_collectives(tmp_path, last(1, calls(1, 2, done=False)))
    other = last(1, calls(1, 9, done=True), group="parts")
    write_last_collectives(tmp_path, LastCollectives(**{**_fields(other), "reason": "ended"}))
    found = read_last_collectives(tmp_path)[1]
    assert found.reason == "rank 0 waited"
    assert {group.group for group in found.groups} == {"world", "parts"}


def test_the_file_of_another_process_is_replaced(tmp_path: Path) -> None:
    write_last_collectives(tmp_path, last(1, calls(1, 2, done=False), process_id=1))
    write_last_collectives(tmp_path, last(1, calls(1, 9, done=True), group="parts"))
    assert [group.group for group in read_last_collectives(tmp_path)[1].groups] == ["parts"]


def test_damaged_files_are_left_out(tmp_path: Path) -> None:
    last_collectives_file(tmp_path, 0).write_text("{")
    last_collectives_file(tmp_path, 2).write_bytes(b'{"hostname": "\xff"}')
    write_last_collectives(tmp_path, last(1, calls(1, 2, done=False)))
    assert list(read_last_collectives(tmp_path)) == [1]


def _fields(struct: LastCollectives) -> dict[str, object]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
