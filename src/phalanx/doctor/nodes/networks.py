"""The networks that nodes have in common, and those of them that lead nowhere. Pure."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.doctor.examine import Finding, warning

_MAX_PEERS = 8

Networks = Mapping[str, Mapping[str, str]]
"""Networks by host and interface: "10.0.0.7/24"."""


@dataclass(frozen=True, kw_only=True)
class JudgedNetworks:
    """Networks that MPI can use, and those that it must be kept from."""

    usable: Mapping[str, str | None]
    """Networks by which every node reaches the others, "10.0.0.0/24", each with the name of its
    interface where all nodes have the same."""
    findings: Sequence[Finding]
    """A finding for each node that does not answer in a network."""
    has_others: bool
    """There are networks in which MPI would wait for ever, besides usable ones."""


def addresses_to_try(networks: Networks) -> dict[str, list[str]]:
    """Return the addresses that each host is to reach: of some hosts after it, in its networks."""
    hosts = list(networks)
    tried: dict[str, list[str]] = {host: [] for host in hosts}
    members = _members(networks)
    for found in members.values():
        if _is_repeated(found):
            continue
        around = [host for host in hosts if host in found]
        for place, host in enumerate(around):
            tried[host] += [found[other][1] for other in hosts_after(around, place)]
    return tried


def hosts_after(hosts: Sequence[str], place: int) -> list[str]:
    """Return the hosts that the one at a place tries: some after it, in a circle, so that as many
    try each host."""
    return [*hosts[place + 1 :], *hosts[:place]][:_MAX_PEERS]


def judge_networks(networks: Networks, unreachable: Mapping[str, Sequence[str]]) -> JudgedNetworks:
    """Judge the networks that several nodes have. unreachable: by host, the addresses that it tried
    and did not reach."""
    usable: dict[str, str | None] = {}
    findings, has_others = [], False
    for cidr, found in _members(networks).items():
        if _is_repeated(found):  # a bridge that is on each node for itself, such as docker0
            has_others = True
            continue
        lost = {
            (host, other)
            for host in found
            for other, (_, address) in found.items()
            if address in unreachable[host]
        }
        for node, others in _blamed(lost):
            name, address = found[node]
            detail = f"its {name} ({address}, network {cidr}) does not answer {', '.join(others)}"
            findings.append(warning(node, detail))
            has_others = True
        if not lost and len(found) == len(networks):
            names = {name for name, _ in found.values()}
            usable[cidr] = names.pop() if len(names) == 1 else None
    return JudgedNetworks(usable=usable, findings=findings, has_others=has_others and bool(usable))


def _members(networks: Networks) -> dict[str, dict[str, tuple[str, str]]]:
    """Return interface and address by network and host, of networks that several hosts have."""
    found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for host, interfaces in networks.items():
        for name, text in interfaces.items():
            own = ipaddress.ip_interface(text)
            found[str(own.network)].setdefault(host, (name, str(own.ip)))
    return {cidr: hosts for cidr, hosts in found.items() if len(hosts) > 1}


def _is_repeated(found: Mapping[str, tuple[str, str]]) -> bool:
    return len({address for _, address in found.values()}) < len(found)


def _blamed(lost: set[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return the nodes that explain most of what was lost, with those that they do not answer."""
    blamed, left = [], set(lost)
    while left:
        hosts = sorted({host for pair in left for host in pair})
        worst = max(hosts, key=lambda host: sum(host in pair for pair in left))
        others = sorted({host for pair in left if worst in pair for host in pair} - {worst})
        blamed.append((worst, others))
        left = {pair for pair in left if worst not in pair}
    return blamed
