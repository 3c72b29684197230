"""Machine files: what is known of the nodes and the network that a plan is made for.

YAML, one screen, written by `phalanx bench machine`, shipped with published machines, or by hand.
What is not known is left out: predictions then span what it may be, and say so.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import yaml

from phalanx.errors import UserError

LARGEST_BYTES = 20_000
MOST_PER_RANK = 70e9
"""Most bytes a second out of a node per rank of a known machine: a node of Fugaku, rounded up."""
_FOLDER = files("phalanx.plan") / "machines"
_SUFFIXES = (".yaml", ".yml")


class SumTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of an all-reduce of `bytes` among `ranks` of one node, in memory that they share."""

    ranks: int
    bytes: int
    seconds: float
    """Median over the calls."""
    spread: float = 0.0
    """Half the distance of the quartiles, as a share of the median."""


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The links between nodes."""

    bandwidth_bytes_per_s: float
    """Bytes a second out of a node, over all its ports."""
    latency_s: float | None = None
    """Seconds of the smallest message from a node to another, half a round trip."""
    bandwidth_spread: float = 0.0
    """Half the distance of the quartiles over turns of pairs of nodes, as a share of the median; 0:
    the bandwidth is stated, not measured."""
    latency_spread: float = 0.0
    send_cpu_s_per_mb: float | None = None
    """Processor seconds of a rank per megabyte that it sends to another node, and as much that it
    receives, its polls included."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster of equal nodes; None: not known."""

    name: str
    source: str
    """Source of the numbers: a command and a date, or a publication."""
    nodes: int
    ranks_per_node: int
    """Ranks, or devices, of a node that a plan uses."""
    cores_per_node: int | None = None
    processor: str | None = None
    memory_gib_per_rank: float | None = None
    """Memory that a rank may have: of its device, or its share of the node's."""
    memory_bytes_per_s: dict[int, float] = {}
    """Bytes a second that a rank reads and writes, all ranks at once, by the bytes it works on."""
    contention: dict[int, float] = {}
    """Time of a computation by the number of ranks of a node that compute, as multiple of alone."""
    all_reduce: list[SumTime] = []
    sum_cpu_s_per_mb: float | None = None
    """Processor seconds in which a rank adds a megabyte of float32 to another."""
    storage_bytes_per_s: float | None = None
    """Bytes a second of the training's files that a node reads; None: its memory holds them."""
    network: Network | None = None
    price_per_node_hour: float | None = None
    currency: str = "EUR"
    unknown: list[str] = []
    """Facts that the source does not state, in words."""


RANGES: dict[str, tuple[float, float, str]] = {
    "nodes": (1, 1e6, "nodes"),
    "ranks_per_node": (1, 4096, "ranks"),
    "cores_per_node": (1, 4096, "cores"),
    "memory_gib_per_rank": (0.1, 1e5, "GiB"),
    "price_per_node_hour": (0, 1e5, "of the currency per node and hour"),
    "storage_bytes_per_s": (1e4, 1e13, "bytes per second into a node"),
    "network.bandwidth_bytes_per_s": (1e4, 2e12, "bytes per second out of a node"),
    "network.latency_s": (1e-8, 10, "seconds"),
    "network.bandwidth_spread": (0, 0.9, "shares of the bandwidth"),
    "network.latency_spread": (0, 100, "shares of the latency"),
    "network.send_cpu_s_per_mb": (0, 10, "processor seconds per megabyte"),
    "sum_cpu_s_per_mb": (0, 10, "processor seconds per megabyte"),
    "memory_bytes_per_s": (1e6, 1e14, "bytes per second of a rank"),
    "memory_bytes_per_s.key": (1, 1e15, "bytes that a rank works on"),
    "contention": (0.5, 1000, "times the seconds of a rank alone"),
    "contention.key": (1, 4096, "ranks"),
    "all_reduce.ranks": (2, 4096, "ranks"),
    "all_reduce.bytes": (1, 1e12, "bytes"),
    "all_reduce.seconds": (1e-9, 1000, "seconds"),
}
"""Smallest and largest value that a number may have, and its unit."""


def published_machines() -> list[str]:
    """Return the names of the machines that ship with Phalanx."""
    found = (Path(str(each)) for each in _FOLDER.iterdir())
    return sorted(path.stem for path in found if path.suffix in _SUFFIXES)


def read_machine(name: str) -> Cluster:
    """Return a machine: one of `published_machines`, or a YAML file.

    Raises: UserError that names key, value, unit and range, and what to write instead.
    """
    where, text = f"--machine {name}", _text_of(name)
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        problem = str(getattr(error, "problem", None) or "it is nested too deeply")
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        raise UserError(f"{where} is no YAML{line}: {problem}") from error
    if not isinstance(content, dict):
        raise UserError(f"{where} holds no machine: write a key and its value per line: nodes: 4")
    _check_keys(where, content, Cluster)
    kinds: dict[str, type[msgspec.Struct]] = {"network": Network, "all_reduce": SumTime}
    for key, kind in kinds.items():
        inner = content.get(key)
        for each in inner if isinstance(inner, list) else [inner]:
            if isinstance(each, dict):
                _check_keys(where, each, kind, f"{key}.")
    check_numbers(where, content)
    try:
        machine = msgspec.convert(content, Cluster, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {error}; `phalanx bench machine` writes such a file") from error
    _check_bits(where, machine)
    return machine


def check_numbers(where: str, content: dict[str, Any]) -> None:
    """Raise UserError for a number out of its range, with key, unit and range.

    where: of the machine, in the error. content: keys and values of its file.
    """
    for key, name, value in _numbers(content):
        low, high, unit = RANGES[key]
        number = value
        if isinstance(value, str):  # YAML reads 1e9 as a text
            try:
                number = float(value)
            except ValueError:
                number = math.nan
        if isinstance(number, bool) or not isinstance(number, int | float):
            number = math.nan
        if not low <= number <= high:
            raise UserError(
                f"{where}: {name} must be a number of {unit} from {low:g} to {high:g}, not "
                f"{value!r}"
            )


def _numbers(content: dict[Any, Any], owner: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield the key in `RANGES`, the name and the value of each number, also of tables."""
    for key, value in content.items():
        name = f"{owner}{key}"
        if isinstance(value, dict) and name in RANGES:
            for each in value:
                yield f"{name}.key", f"a key of {name}", each
                yield name, f"{name} of {each}", value[each]
        elif isinstance(value, dict):
            yield from _numbers(value, f"{name}.")
        elif isinstance(value, list):
            for each in value:
                yield from _numbers(each, f"{name}.") if isinstance(each, dict) else ()
        elif name in RANGES and value is not None:
            yield name, name, value


def shared_by(machine: Cluster, ranks: int) -> Cluster:
    """Return the machine with so many ranks on a node: more than it states share its memory."""
    memory_gib = machine.memory_gib_per_rank
    if memory_gib is None or ranks <= machine.ranks_per_node:
        return machine
    share = machine.ranks_per_node / ranks
    return msgspec.structs.replace(machine, memory_gib_per_rank=share * memory_gib)


def machine_text(machine: Cluster, comments: dict[str, str]) -> str:
    """Return a machine as the text of its file. comments: lines above a key, by key."""
    values: dict[str, Any] = msgspec.to_builtins(machine, str_keys=False)
    lines = []
    for key, value in values.items():
        if value in (None, [], {}) or (key == "currency" and machine.price_per_node_hour is None):
            continue
        lines += [f"# {line}" for line in comments.get(key, "").splitlines()]
        is_table = isinstance(value, dict | list) and key != "network"
        flow = None if is_table else False  # None: what is in the table on a line
        text = yaml.safe_dump({key: value}, sort_keys=False, width=100, default_flow_style=flow)
        lines.append(text.rstrip())
    return "\n".join(lines) + "\n"


def _text_of(name: str) -> str:
    path = Path(name)
    if path.suffix not in _SUFFIXES:
        known = published_machines()
        if name in known:
            return (_FOLDER / f"{name}.yaml").read_text()
        near = difflib.get_close_matches(name, known, 1)
        meant = f"; do you mean {near[0]}?" if near else f": {', '.join(known)}"
        raise UserError(f"--machine {name} is no .yaml file and no machine that ships{meant}")
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(f"--machine {name} has more than {LARGEST_BYTES:,} bytes")
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"--machine {name} cannot be read: {reason}") from error


def _check_keys(
    where: str, content: dict[Any, Any], kind: type[msgspec.Struct], prefix: str = ""
) -> None:
    """Raise UserError for a key that a machine has not, with the nearest one, or a missing one."""
    known = kind.__struct_fields__
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            meant = f"do you mean {prefix}{near[0]}?" if near else f"it may be {', '.join(known)}"
            raise UserError(f"{where}: there is no key {prefix}{key}; {meant}")
    required = [f.name for f in msgspec.structs.fields(kind) if f.required]
    if missing := [key for key in required if key not in content]:
        key = prefix + missing[0]
        low, high, unit = RANGES.get(key, (0, 0, ""))
        given = f", a number of {unit} from {low:g} to {high:g}" if unit else ", a text"
        raise UserError(f"{where}: {key} is missing{given}")


def _check_bits(where: str, machine: Cluster) -> None:
    """Ask back for a bandwidth that looks like bits: more than the memory of the node moves, or,
    where that is not known, than any known machine has."""
    if machine.network is None:
        return
    bandwidth, rates = machine.network.bandwidth_bytes_per_s, machine.memory_bytes_per_s
    most = machine.ranks_per_node * max(rates.values(), default=MOST_PER_RANK)
    if bandwidth <= most:
        return
    reason = f"the memory of a node moves ({most:.3g} bytes per second)"
    right = "check memory_bytes_per_s"
    if not rates:
        reason = f"any known machine has for so many ranks ({most:g})"
        right = "state memory_bytes_per_s, too"
    raise UserError(
        f"{where}: network.bandwidth_bytes_per_s is {bandwidth:g}, more than {reason}: are these "
        f"bits? Then write {bandwidth / 8:g}; if they are bytes, {right}"
    )
