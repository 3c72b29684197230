"""Nodes that cannot be asked, and this machine, which can."""

import resource
import socket
import subprocess
from pathlib import Path

import pytest

from phalanx.doctor.nodes.interview import words_in
from phalanx.doctor.nodes.reach import (
    SlowLogins,
    ask_nodes,
    describe_failure,
    is_this_machine,
    open_files,
    remote_command,
)

QUESTION = {"packages": ["numpy"], "paths": ["/none"], "data": [], "names": []}


@pytest.mark.parametrize(
    ("code", "said", "detail", "mend"),
    [
        (
            255,
            "ssh: Could not resolve hostname n1: Name or service not known\r\n",
            "ssh: Could not resolve hostname n1: Name or service not known",
            "check the spelling, or use its address: --hosts 10.0.0.7",
        ),
        (
            255,
            "Warning: Permanently added 'n1'.\nme@n1: Permission denied (publickey).\n",
            "me@n1: Permission denied (publickey).",
            "ssh-copy-id n1",
        ),
        (
            255,
            "No ED25519 host key is known for n1 and you have requested strict checking.\n"
            "Host key verification failed.\n",
            "No ED25519 host key is known for n1 and you have requested strict checking.",
            "ssh n1 true, once, and accept its key",
        ),
        (
            255,
            "@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@\n"
            "Host key verification failed.\n",
            "REMOTE HOST IDENTIFICATION HAS CHANGED!",
            "ssh-keygen -R n1, then ssh n1 true",
        ),
        (
            255,
            "ssh: connect to host n1 port 22: Connection refused\n",
            "ssh: connect to host n1 port 22: Connection refused",
            "start its ssh server: systemctl start ssh",
        ),
        (
            255,
            "ssh: connect to host n1 port 22: No route to host\n",
            "ssh: connect to host n1 port 22: No route to host",
            "start it, or allow ssh through the firewall: ping n1",
        ),
        (255, "kex_exchange: reset by peer\n", "kex_exchange: reset by peer", "ssh n1 true"),
        (
            127,
            "env: '/v/python': No such file or directory\n",
            "has no /v/python",
            "install the same environment there, at the same path, or share the folder",
        ),
        (1, "", "/v/python fails: no output", "ssh n1 /v/python --version"),
        (None, "", "no answer within 60 s", "ssh n1 /v/python --version"),
    ],
)
def test_failures(code: int | None, said: str, detail: str, mend: str) -> None:
    found = describe_failure("n1", code, said, "/v/python")
    assert (found.name, found.status, found.detail, found.mend) == ("n1", "problem", detail, mend)


def test_a_remote_command_is_one_word_of_any_shell() -> None:
    command = remote_command("/my python", 17, {"PYTHONPATH": "/a b"})
    words = subprocess.check_output(["sh", "-c", f"printf '%s|' {command}"], text=True).split("|")
    assert words[:4] == ["env", "PYTHONPATH=/a b", "/my python", "-c"]
    assert words[4].endswith("exec(sys.stdin.buffer.read(17))")


def test_this_machine() -> None:
    assert is_this_machine("localhost")
    assert is_this_machine(socket.gethostname())
    assert is_this_machine("127.0.0.1")
    assert not is_this_machine("192.0.2.77")


def test_this_machine_answers(tmp_path: Path) -> None:
    folders = {"runs": str(tmp_path / "a" / "runs")}
    nodes, failed = ask_nodes(["localhost"], {**QUESTION, "folders": folders})
    assert failed == []
    found = nodes["localhost"]
    assert found.sees == {"runs": True}
    assert abs(found.clock_offset_s) <= found.clock_error_s + 1e-4
    assert found.facts["missing"] == ["/none"]
    assert found.facts["cores"] >= 1
    assert found.facts["packages"]["numpy"]
    assert list(tmp_path.iterdir()) == []


def test_words_are_only_written_where_they_can_be(tmp_path: Path) -> None:
    tmp_path.joinpath("file").touch()
    with words_in({"a": str(tmp_path), "b": "/proc/none", "c": str(tmp_path / "new")}) as words:
        assert set(words) == {"a", "c"}
        for file, word in words.values():
            assert Path(file).read_text() == word
            assert Path(file).parent == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("num_nodes", "answer_s"), [(3, 9), (1000, 25)])
def test_of_a_thousand_slow_logins_a_few_are_named(
    num_nodes: int, answer_s: int, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = SlowLogins(num_nodes)
    for number in range(num_nodes):
        slow.tell(f"n{number}")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"phalanx: n0: no answer within {answer_s} s, waiting up to ")
    assert len(lines) == min(num_nodes, 9)
    assert lines[-1].startswith("phalanx: more than 8 nodes are slow") == (num_nodes > 8)


def test_sessions_get_the_open_files_that_they_need() -> None:
    """Beyond some 300 nodes a limit of 1,024 files ended the preflight with a traceback."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        with open_files(1000):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(1512, before[1])
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512
        with open_files(before[1]):  # more than there are
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
