"""Network interfaces of this node and their addresses, found without looking up names."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
_GET_ADDRESS, _GET_MASK = 0x8915, 0x891B  # SIOCGIFADDR and SIOCGIFNETMASK of Linux
_ANY_PORT = 9  # nothing is sent there
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_GLOBAL_SCOPE = "00"


def addresses() -> list[str]:
    """Return the addresses of this node's interfaces, IPv4 first, the loopback's only where it has
    no other. Names are not looked up: between nodes they often mean nothing."""
    return [address for _, address in interfaces() if not address.startswith("127.")] or [LOOPBACK]


def interfaces() -> list[tuple[str, str]]:
    """Return the names of interfaces, each with an address: IPv4 first, then global IPv6."""
    found = [(name, socket.inet_ntoa(address)) for name, address, _ in _ipv4()]
    with suppress(OSError):
        found += parse_ipv6(_IPV6_ADDRESSES.read_text())
    return found


def networks() -> dict[str, str]:
    """Return address and width of the network by interface, "10.0.0.7/24"; no loopback, no IPv6."""
    return {
        name: f"{socket.inet_ntoa(address)}/{int.from_bytes(mask, 'big').bit_count()}"
        for name, address, mask in _ipv4()
        if address[0] != 127
    }


def _ipv4() -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the name of each interface that has an IPv4 address, the address and its mask."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # an interface without such an address
                address, mask = (
                    fcntl.ioctl(asking.fileno(), code, request)[20:24]
                    for code in (_GET_ADDRESS, _GET_MASK)
                )
                yield name, address, mask


def parse_ipv6(text: str) -> list[tuple[str, str]]:
    """Return interface and address of each line of /proc/net/if_inet6 that is global and usable."""
    found = []
    for line in text.splitlines():
        digits, _, _, scope, flags, name = line.split()
        is_usable = not int(flags, 16) & 0x68  # duplicate, deprecated or tentative
        if scope == _GLOBAL_SCOPE and is_usable:
            found.append((name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))))
    return found


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_numeric(host: str) -> bool:
    """Return whether `host` is an address and not a name."""
    try:
        socket.inet_pton(family_of(host), host)
    except OSError:
        return False
    return True


def interface_towards(address: str) -> str | None:
    """Return the name of the interface by which this node reaches a numeric `address`; None where
    no route leads there. Nothing is sent."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANY_PORT))
        except OSError:
            return None
        own = probe.getsockname()[0]
    return next((name for name, found in interfaces() if found == own), None)
