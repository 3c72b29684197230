"""A cluster of virtual nodes: network, host name, processes, /dev/shm and disks of each its own.

Everything lives in namespaces that only its own processes hold. The death of one process ends all
of them, and it dies with the process that made the cluster: nothing is left on the host.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

SCRIPTS = Path(__file__).parent / "scripts"
NETWORK = "10.77.0"
PROGRAMS = ("unshare", "nsenter", "setpriv", "pgrep", "ip", "tc", "ssh", "ssh-keygen", "sshd")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
TRIAL = "mount --make-rprivate / && ip link add port type veth && ip link add switch type bridge"
START_TIMEOUT_S = 60.0
LinkState = Literal["down", "up", "cut", "mended"]

SSH_CONFIG = "Host *\n  BatchMode yes\n  ConnectTimeout 5\n  LogLevel ERROR\n"
SSHD_CONFIG = """\
Port 22
ListenAddress 0.0.0.0
HostKey /mnt/hostkey
PasswordAuthentication no
PermitRootLogin prohibit-password
AuthorizedKeysFile /root/.ssh/authorized_keys
StrictModes no
UsePAM no
PidFile none
MaxStartups 100
Subsystem sftp internal-sftp
"""


def missing() -> str | None:
    """Return the reason why this machine can have no virtual nodes; None if it can."""
    if os.geteuid() != 0:
        return "virtual nodes need root"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if lacking:
        return f"virtual nodes need {', '.join(lacking)}: docs/architecture.md names the packages"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "sh", "-c", TRIAL],
        capture_output=True,
        text=True,
        env={"PATH": PATH},
        check=False,
    )
    return f"virtual nodes: {tried.stderr.strip()}" if tried.returncode else None


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Running virtual nodes n0, n1, …, all on one switch."""

    state: Path
    """Keys, logs and process numbers, on the host."""
    shared: Path
    """A folder that all nodes see at this path, empty at first."""
    nodes: tuple[str, ...]
    names_resolve: bool
    supervisor: int
    """Process whose death ends the cluster."""

    def address(self, node: str) -> str:
        """Return the numeric address of a node."""
        return f"{NETWORK}.{self.nodes.index(node) + 1}"

    def host(self, node: str) -> str:
        """Return the name that leads to the node: its address where names do not resolve."""
        return node if self.names_resolve else self.address(node)

    def command(self, node: str, words: Sequence[str]) -> list[str]:
        """Return the command line that runs `words` in the node, in its /mnt/scratch."""
        process = (self.state / f"pid.{node}").read_text().strip()
        change_folder = 'cd /mnt/scratch && exec "$@"'
        inside = ["nsenter", "-t", process, "-a", "--", "sh", "-c", change_folder, "sh", *words]
        return self._outside(inside)

    def run(
        self,
        node: str,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run `words` in the node with our variables and `environment`; stderr is in stdout.

        A program that takes longer is ended; its exit code is 124.
        """
        limited = ["timeout", "--kill-after=10", str(timeout_s), *words]
        return subprocess.run(
            self.command(node, limited),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PATH": PATH, **environment},
            check=False,
        )

    @contextlib.contextmanager
    def start(
        self,
        node: str,
        words: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start `words` in the node and wait for it no longer than the context lasts.

        log: takes the output, on the host.
        """
        with log.open("wb") as output:
            started = subprocess.Popen(
                self.command(node, words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": PATH, **environment},
                start_new_session=True,
            )
        try:
            yield started
        finally:
            started.kill()
            started.wait()

    def is_alive(self, node: str) -> bool:
        """Return whether the node has not been ended."""
        process = (self.state / f"pid.{node}").read_text().strip()
        return subprocess.run(self._outside(["kill", "-0", process]), check=False).returncode == 0

    def processes(self, node: str) -> list[tuple[int, str]]:
        """Return number and command line of what runs in a node, beside what makes it a node."""
        listed = self.run(node, ["ps", "-eo", "pid=,args="]).stdout.splitlines()
        found = [line.strip().split(" ", 1) for line in listed]
        own = re.compile(r"bash .*/node\.sh|sleep 1000|(\S*/)?sshd\b|timeout .* ps -eo |ps -eo ")
        return [(int(pid), words) for pid, words in found if not own.match(words)]

    def kill(self, node: str) -> None:
        """End every process of the node at once; its kernel still closes the connections."""
        process = (self.state / f"pid.{node}").read_text().strip()
        subprocess.run(self._outside(["kill", "-9", process]), check=True)

    def power_off(self, node: str) -> None:
        """End the node as a loss of power does: it answers no more and says no farewell."""
        self.set_link(node, "cut")
        self.kill(node)

    def set_link(self, node: str, state: LinkState) -> None:
        """Change the link of a node. `down`: no carrier; `cut`: packets vanish without notice."""
        change = {
            "down": ["down"],
            "up": ["up"],
            "cut": ["nomaster"],
            "mended": ["master", "switch"],
        }
        self._ip("link", "set", self._port(node), *change[state])

    def limit_rate(self, rate: str, bucket: str) -> None:
        """Limit every link, both ways. rate, bucket (the bytes that pass at once): as `tc` reads
        them, such as `1gbit` and `128kb`."""
        shape = ["root", "tbf", "rate", rate, "burst", bucket, "latency", "100ms"]
        for node in self.nodes:
            change = ["tc", "qdisc", "replace", "dev"]
            words = self._outside([*change, self._port(node), *shape])
            subprocess.run(words, check=True, env={"PATH": PATH})
            limited = self.run(node, [*change, "eth0", *shape])
            assert limited.returncode == 0, limited.stdout

    def _port(self, node: str) -> str:
        return f"port{self.nodes.index(node)}"

    def _ip(self, *words: str) -> None:
        subprocess.run(self._outside(["ip", *words]), check=True, env={"PATH": PATH})

    def _outside(self, words: Sequence[str]) -> list[str]:
        """Return the command line that runs `words` beside the nodes, where the switch is."""
        return ["nsenter", "-t", str(self.supervisor), "-m", "-n", "-p", "--", *words]


@contextlib.contextmanager
def virtual_nodes(
    count: int,
    state: Path,
    *,
    keep: Sequence[Path],
    environment: Mapping[str, str] = MappingProxyType({}),
    names_resolve: bool = True,
    rate: str | None = None,
    bucket: str = "128kb",
) -> Iterator[Cluster]:
    """Start `count` virtual nodes and end them.

    state: a folder to make, on the host.
    keep: folders that every node sees; none below /mnt.
    environment: variables of every session over ssh.
    names_resolve: False leaves the nodes' names out of /etc/hosts; addresses work.
    rate, bucket: limit of every link, see `limit_rate`.
    Raises: RuntimeError with the logs if the nodes do not start.
    """
    shared = state / "shared"
    shared.mkdir(parents=True)
    state.chmod(0o700)
    _write_state(state, count, environment, names_resolve)
    words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork"]
    with (state / "network.log").open("wb") as log:
        started = subprocess.Popen(
            [*words, "--kill-child", "--mount-proc", "bash", str(SCRIPTS / "network.sh")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **{"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "NUM_NODES": str(count)},
                **{"NETWORK": NETWORK, "STATE": str(state), "SCRIPTS": str(SCRIPTS)},
                "TEMPORARY": tempfile.gettempdir(),
                "KEEP": ":".join(map(str, [*keep, SCRIPTS, shared])),
            },
            start_new_session=True,
        )
    try:
        _wait_until_up(started, state)
        cluster = Cluster(
            state=state,
            shared=shared,
            nodes=tuple(f"n{node}" for node in range(count)),
            names_resolve=names_resolve,
            supervisor=_child_of(started.pid),
        )
        if rate is not None:
            cluster.limit_rate(rate, bucket)
        yield cluster
    finally:
        _end(started)


def _write_state(
    state: Path, count: int, environment: Mapping[str, str], names_resolve: bool
) -> None:
    """Write keys, hosts and settings of ssh, which the nodes read."""
    for name in ("user", "host"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(state / name)]
        subprocess.run(words, check=True)
    addresses = {f"n{node}": f"{NETWORK}.{node + 1}" for node in range(count)}
    hosts = ["127.0.0.1 localhost"]
    if names_resolve:
        hosts += [f"{address} {name}" for name, address in addresses.items()]
    (state / "hosts").write_text("\n".join(hosts) + "\n")
    (state / "resolv.conf").touch()
    key = " ".join((state / "host.pub").read_text().split()[:2])
    known = [f"{name},{address} {key}" for name, address in addresses.items()]
    (state / "known_hosts").write_text("\n".join(known) + "\n")
    (state / "ssh_config").write_text(SSH_CONFIG)
    variables = " ".join(f'"{name}={value}"' for name, value in environment.items())
    settings = SSHD_CONFIG + (f"SetEnv {variables}\n" if variables else "")
    (state / "sshd_config").write_text(settings)


def _wait_until_up(started: subprocess.Popen[bytes], state: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while not (state / "up").exists():
        if started.poll() is not None or time.monotonic() > end:
            logs = [path.read_text() for path in sorted(state.glob("*.log"))]
            raise RuntimeError("the virtual nodes did not start:\n" + "\n".join(logs))
        time.sleep(0.02)


def _child_of(process: int) -> int:
    return int(subprocess.check_output(["pgrep", "-P", str(process)], text=True))


def _end(started: subprocess.Popen[bytes]) -> None:
    """Kill the cluster and wait until its processes are gone."""
    found = subprocess.run(["pgrep", "-P", str(started.pid)], text=True, stdout=subprocess.PIPE)
    started.kill()
    started.wait()
    end = time.monotonic() + START_TIMEOUT_S
    while any(Path(f"/proc/{child}").exists() for child in found.stdout.split()):
        if time.monotonic() > end:
            raise RuntimeError(f"virtual nodes: process {found.stdout.strip()} does not end")
        time.sleep(0.02)
