"""Which working sets are measured, and that a pass touches what it says."""

from phalanx.bench.hardware_limits import kernel, working_sets


def test_working_sets_reach_the_largest_buffer() -> None:
    assert working_sets(4) == [2**16]
    assert working_sets(2**20) == [2**16, 2**18, 2**20]
    assert working_sets(2**20 + 1)[-1] == 2**22


def test_a_pass_can_be_made_again_and_again() -> None:
    for name in ("copy", "add"):
        one_pass = kernel(name, 4096)
        one_pass()
        one_pass()
