"""Network interfaces of this node and their addresses, found without looking up names."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # the ioctl that asks for the address of an interface
_ANY_PORT = 9  # nothing is sent there
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_GLOBAL_SCOPE = "00"


def addresses() -> list[str]:
    """Return the addresses of this node's interfaces, IPv4 first, the loopback's only where it has
    no other. Names are not looked up: between nodes they often mean nothing."""
    return [address for _, address in interfaces() if not address.startswith("127.")] or [LOOPBACK]


def interfaces() -> list[tuple[str, str]]:
    """Return the names of interfaces, each with an address: IPv4 first, then global IPv6."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without such an address
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                found.append((name, socket.inet_ntoa(answer[20:24])))
    with suppress(OSError):
        found += parse_ipv6(_IPV6_ADDRESSES.read_text())
    return found


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
