"""Stands in for the interpreter: has the fork server run a program, and ends as that ends.

Copied beside the socket of the server, as an executable file:

    python [-u] <file or -m module> <word>...

The program gets the working directory, environment and open files of this process, and the signals
that reach it; it is killed when this process dies. Imports little, and `socket` and `signal` take
longer than all the rest: it must start in milliseconds. Other options of the interpreter are left
to the interpreter itself.
"""

import _signal
import _socket
import array
import os
import sys

NUMBER_BYTES = 4
"""The size of the program's process id, which is sent when it starts, and of its wait status."""
ENDING = 128
FORWARDED = (
    _signal.SIGTERM,
    _signal.SIGINT,
    _signal.SIGQUIT,
    _signal.SIGHUP,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
)


def inherited_files() -> list[int]:
    """Return the open files, without the one by which the folder itself is listed."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return sorted(found)


def send_request(server: _socket.socket, python: str, words: list[str], files: list[int]) -> None:
    unbuffered = words[0] == "-u"
    document = repr(
        {
            "python": python,
            "words": words[unbuffered:],
            "folder": os.getcwd(),  # noqa: PTH109  # pathlib takes milliseconds
            "environment": dict(os.environb),
            "files": files,
            "cores": os.sched_getaffinity(0),
            "unbuffered": unbuffered,
            "ignored": [int(s) for s in FORWARDED if _signal.getsignal(s) == _signal.SIG_IGN],
        }
    ).encode()
    header = len(document).to_bytes(NUMBER_BYTES, "little")
    handed_on = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", files))]
    server.sendmsg([header], handed_on)
    server.sendall(document)


def receive_number(server: _socket.socket) -> int:
    answer = server.recv(NUMBER_BYTES, _socket.MSG_WAITALL)
    if len(answer) < NUMBER_BYTES:
        sys.exit("the fork server has ended")
    return int.from_bytes(answer, "little", signed=True)


def is_unbuffered_program(words: list[str]) -> bool:
    """Return whether torchrun starts a rank: `-u <file>`."""
    return words[0] == "-u" and not words[1].startswith("-")


def forward(pid: int, number: int) -> None:
    """Send a signal on to the program, which may have ended already, its status on its way."""
    try:  # noqa: SIM105  # `contextlib` takes milliseconds
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def main(python: str, words: list[str]) -> None:
    if words[0].startswith("-") and words[0] != "-m" and not is_unbuffered_program(words):
        os.execv(sys.executable, [sys.executable, *words])
    files = inherited_files()
    server = _socket.socket(_socket.AF_UNIX)
    server.connect(f"{os.path.dirname(python)}/socket")  # noqa: PTH120
    send_request(server, python, words, files)
    pid = receive_number(server)
    for number in FORWARDED:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda which, _: forward(pid, which))
    code = os.waitstatus_to_exitcode(receive_number(server))
    if code < 0:
        if -code in FORWARDED:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else ENDING - code)


if __name__ == "__main__":
    main(__file__, sys.argv[1:])
