"""The network that ranks and launchers use where nodes have several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.jobs.installation import Vendor
from phalanx.jobs.interfaces import interface_towards, is_numeric

_MESSAGES, _DAEMONS = "OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include"
_BY_NAME: dict[Vendor, tuple[str, ...]] = {
    "mpich": ("HYDRA_IFACE", "FI_TCP_IFACE", "FI_SOCKETS_IFACE"),
    "impi": ("I_MPI_HYDRA_IFACE", "FI_TCP_IFACE"),
}
_CHOICES = (
    *(_MESSAGES, _DAEMONS),
    *("OMPI_MCA_btl_tcp_if_exclude", "PRTE_MCA_prte_if_exclude", "OMPI_MCA_btl", "OMPI_MCA_pml"),
    *("HYDRA_IFACE", "I_MPI_HYDRA_IFACE", "FI_TCP_IFACE", "FI_PROVIDER", "UCX_NET_DEVICES"),
)
"""Variables with which the user makes the choice."""


def network_variables(
    vendor: Vendor,
    networks: Mapping[str, str | None],
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables that keep an MPI to some networks; none where the user has chosen.

    networks: "10.0.0.0/24", with the name of its interface on all nodes, or None where it has
    several: then only Open MPI can be told.
    """
    if any(name in environ for name in _CHOICES) or not networks:
        return {}
    if vendor == "openmpi":
        first = next(iter(networks))  # daemons do not start with two
        return {_MESSAGES: ",".join(networks), _DAEMONS: first}
    name = next(filter(None, networks.values()), None)
    return {} if name is None else dict.fromkeys(_BY_NAME.get(vendor, ()), name)


def interface_for(hosts: Iterable[str]) -> str | None:
    """Return the interface by which this machine reaches the first of `hosts` that is the address
    of another; None where all are names, or ours."""
    found = (interface_towards(host) for host in hosts if is_numeric(host))
    return next((name for name in found if name not in (None, "lo")), None)
