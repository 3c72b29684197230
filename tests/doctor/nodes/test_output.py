"""What launchers and ranks say when nodes are not connected, in a line."""

from phalanx.doctor.nodes.meeting import describe_output

DASHES = "-" * 74 + "\n"


def test_the_first_sentence_of_a_launcher() -> None:
    text = "At least one pair of MPI processes are unable to reach each\nother.  This means that\n"
    output = f"[n0:1] Warning: failed in parent\n{DASHES}{text}{DASHES}{DASHES}again\n{DASHES}"
    assert describe_output(output) == (
        "At least one pair of MPI processes are unable to reach each other"
    )


def test_a_rank_that_fails() -> None:
    output = "[n0:1] plm:ssh: Warning: setpgid(7,7) failed\nphalanx-survey n1: MPI_ERR_INTERN\n"
    assert describe_output(output) == "n1: MPI_ERR_INTERN"


def test_the_first_error() -> None:
    output = "[n0:1] plm:ssh: Warning: setpgid(7,7) failed\nhello\nssh: cannot start\n"
    assert describe_output(output) == "ssh: cannot start"
