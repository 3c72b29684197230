"""Ask nodes over ssh, all at once, for their facts, their clocks and the folders that they see."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from phalanx.doctor.examine import Finding, problem
from phalanx.doctor.nodes import facts
from phalanx.doctor.nodes.facts import ANSWER
from phalanx.doctor.nodes.interview import Ask, NodeFacts, ask_more, words_in
from phalanx.doctor.nodes.networks import addresses_to_try, hosts_after
from phalanx.doctor.nodes.requirements import PACKAGES, SAME, how_to_install
from phalanx.errors import print_note
from phalanx.jobs.elsewhere import (
    ANSWER_S,
    CONNECT_S,
    LOGIN_S,
    MAX_NODES_AT_ONCE,
    patience,
)

_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}")
_FILES = 4
"""Files that are open for a session: two pipes, its errors, and one while it is started."""
_MAX_SLOW = 8
"""Slow nodes that are named."""
_PORTS = range(40_000, 60_000)
"""Ports where ranks listen, and hardly anything else: a kernel answers that nobody does."""
_NOT_STARTED = (126, 127)  # exit codes of a shell whose command is no program
_SSH_FAILED = 255

_REASONS = (
    (r"could not resolve", "check the spelling, or use its address: --hosts 10.0.0.7"),
    (r"identification has changed", "ssh-keygen -R {host}, then ssh {host} true"),
    (r"host key", "ssh {host} true, once, and accept its key"),
    (r"permission denied|too many authentication", "ssh-copy-id {host}"),
    (r"connection refused", "start its ssh server: systemctl start ssh"),
    (
        r"timed out|no route|unreachable",
        "start it, or allow ssh through the firewall: ping {host}",
    ),
)


class NodeFailedError(Exception):
    """A node that gives no answers."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.detail)
        self.finding = finding


class SlowLogins:
    """Times that nodes get which are asked at once, and lines on those that take long."""

    def __init__(self, num_nodes: int) -> None:
        self.answer_s, self.login_s = patience(ANSWER_S, num_nodes), patience(LOGIN_S, num_nodes)
        self._count, self._lock = 0, threading.Lock()

    def tell(self, host: str) -> None:
        """Print that the login of a node is slow; of many, that there are more."""
        with self._lock:
            self._count += 1
            count = self._count
        text = f"{host}: no answer within {self.answer_s:g} s, waiting up to {self.login_s:g} s"
        if count > _MAX_SLOW:
            text = f"more than {_MAX_SLOW} nodes are slow: waiting that long for each"
        if count <= _MAX_SLOW + 1:
            print_note(f"{text} for its login")


class SshSession:
    """The node's Python, started over ssh; it ends with the `with` block, or when we die."""

    def __init__(self, host: str, slow: SlowLogins) -> None:
        """slow: those of all nodes that are asked at once."""
        self._host, self._slow, self._timed_out, self._is_in = host, slow, False, False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__
        source = Path(facts.__file__).read_bytes()
        try:
            self._process = subprocess.Popen(
                [*_SSH, host.strip("[]"), remote_command(sys.executable, len(source), os.environ)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except FileNotFoundError:
            mend = "install OpenSSH's client here"
            raise NodeFailedError(problem(host, "there is no ssh here", mend)) from None
        except OSError as error:  # too many processes or open files
            mend = "raise the limits here: ulimit -n, ulimit -u"
            raise NodeFailedError(problem(host, f"ssh: {error.strerror}", mend)) from None
        self._write(source)

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Ask, and wait for the answer. Raises: NodeFailedError."""
        answer_s, login_s = self._slow.answer_s, self._slow.login_s
        timers = [threading.Timer(answer_s if self._is_in else login_s, self._give_up)]
        timers += [] if self._is_in else [threading.Timer(answer_s, self._slow.tell, [self._host])]
        for timer in timers:
            timer.start()
        try:
            self._write(json.dumps(question).encode() + b"\n")
            assert self._process.stdout is not None
            for line in self._process.stdout:  # a login shell may print, too
                if line.startswith(ANSWER.encode()):
                    answer: dict[str, Any] = json.loads(line[len(ANSWER) :])
                    self._is_in = True
                    return answer
        finally:
            for timer in timers:
                timer.cancel()
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")
        raise NodeFailedError(
            describe_failure(
                self._host,
                None if self._timed_out else code,
                said,
                sys.executable,
                install=_how_to_install(self._host),
                waited_s=answer_s if self._is_in else login_s,
            )
        )

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its exit code says why
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _give_up(self) -> None:
        self._timed_out = True
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        self._process.kill()
        self._process.wait()


def remote_command(python: str, source_bytes: int, environ: Mapping[str, str]) -> str:
    """Return the shell command by which a node runs the first `source_bytes` of its input."""
    # The path omits "": the current folder is a different one on that host.
    code = (
        "import sys; sys.path[:] = filter(None, sys.path); "
        f"exec(sys.stdin.buffer.read({source_bytes}))"
    )
    path = environ.get("PYTHONPATH")
    variables = [f"PYTHONPATH={path}"] if path else []
    return shlex.join(["env", *variables, python, "-c", code])


def _how_to_install(host: str) -> str:
    """Return the mend for a host that lacks this Python."""
    if sys.prefix == sys.base_prefix:
        return SAME
    here = {name: facts.version(name) for name in PACKAGES}
    anew = how_to_install(host, here, python=sys.executable, prefix=sys.prefix)
    return f"{anew}, or share the folder"


def describe_failure(
    host: str,
    code: int | None,
    said: str,
    python: str,
    *,
    install: str = SAME,
    waited_s: float = LOGIN_S,
) -> Finding:
    """Return host, reason and mend.

    code: of ssh, None after `waited_s`; said: on stderr; install: mend for a host without `python`.
    """
    lines = [words for line in said.splitlines() if (words := line.strip(" @\r\t"))]
    last = lines[-1] if lines else "no output"
    if code is None:
        return problem(host, f"no answer within {waited_s:g} s", f"ssh {host} {python} --version")
    if code in _NOT_STARTED:
        return problem(host, f"has no {python}", install)
    if code != _SSH_FAILED:
        return problem(host, f"{python} fails: {last}", f"ssh {host} {python} --version")
    for pattern, mend in _REASONS:
        found = next((line for line in lines if re.search(pattern, line, re.IGNORECASE)), None)
        if found:
            return problem(host, found.removeprefix("WARNING: "), mend.format(host=host))
    return problem(host, last, f"ssh {host} true")


def is_this_machine(name: str) -> bool:
    """Return whether a host of that name is this one: it has an address that is ours."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(name.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as tried, contextlib.suppress(OSError):
            tried.bind(address)
            return True
    return False


@contextlib.contextmanager
def open_files(number: int) -> Iterator[None]:
    """Let this process open so many files more in the block, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        most = soft + number if hard == resource.RLIM_INFINITY else min(soft + number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ask_nodes(
    hosts: Sequence[str], question: Mapping[str, Any]
) -> tuple[dict[str, NodeFacts], list[Finding]]:
    """Ask all hosts, wave by wave; return the answers of those that gave any, and why others did
    not.

    question: as `facts.answer` takes it; each host resolves the names of some others. Words are
    written to the folders, for a moment, only when all hosts have answered.
    """
    slow, names = SlowLogins(len(hosts)), question["names"]
    with (
        open_files(_FILES * len(hosts)),
        ThreadPoolExecutor(min(len(hosts), MAX_NODES_AT_ONCE)) as pool,
        contextlib.ExitStack() as stack,
    ):

        def begin(host: str) -> tuple[Ask, dict[str, Any]] | Finding:
            try:
                ask: Ask = facts.answer
                if not is_this_machine(host):
                    ask = stack.enter_context(SshSession(host, slow)).ask
                others = hosts_after(names, names.index(host)) if host in names else names
                return ask, ask({**question, "names": others})
            except NodeFailedError as error:
                return error.finding

        begun = dict(zip(hosts, pool.map(begin, hosts), strict=True))
        failed = [found for found in begun.values() if isinstance(found, Finding)]
        reached = {host: it for host, it in begun.items() if not isinstance(it, Finding)}
        tried = addresses_to_try({host: found["networks"] for host, (_, found) in reached.items()})
        port = secrets.choice(_PORTS)
        with words_in({} if failed else question["folders"]) as words:

            def complete(host: str) -> NodeFacts:
                ask, answer = reached[host]
                return ask_more(ask, answer, words, addresses=tried[host], port=port)

            try:
                return dict(zip(reached, pool.map(complete, reached), strict=True)), failed
            except NodeFailedError as error:
                return {}, [*failed, error.finding]
