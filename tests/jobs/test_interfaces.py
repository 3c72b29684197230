"""Addresses and interfaces of this node, and the one that Gloo is told."""

import ctypes
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore, PrefixStore, TCPStore

from phalanx.jobs.interfaces import (
    LOOPBACK,
    addresses,
    interface_towards,
    interfaces,
    is_numeric,
    networks,
    parse_ipv6,
)
from phalanx.torch_backend.store import GLOO_INTERFACE, gloo_interface
from phalanx.torch_backend.torch_patches import hide_cpp_warnings

IPV6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000acde48fffe001122 02 40 20 80     eth0
fd000000000000000000000000000001 02 40 00 80     eth0
fd000000000000000000000000000002 03 40 00 c0     eth1
"""


def test_ipv6_addresses_are_those_that_other_nodes_can_reach() -> None:
    """Neither the loopback's, nor the link's, nor one that is not known to be free yet."""
    assert parse_ipv6(IPV6) == [("eth0", "fd00::1")]


def test_loopback_is_an_address_only_where_there_is_no_other() -> None:
    names = dict(interfaces())
    assert names["lo"] == LOOPBACK
    outside = [address for name, address in interfaces() if name != "lo"]
    assert addresses() == (outside or [LOOPBACK])
    for name, text in networks().items():
        assert ip_interface(text).ip in map(ip_address, outside) and name != "lo"


@pytest.mark.parametrize(
    ("host", "numeric"),
    [("10.0.0.1", True), ("fd00::1", True), ("n0", False), ("localhost", False), ("10.0.0", False)],
)
def test_names_are_told_from_addresses(host: str, *, numeric: bool) -> None:
    assert is_numeric(host) is numeric


def test_interface_towards_an_own_address_is_the_one_that_has_it() -> None:
    assert interface_towards(LOOPBACK) == "lo"
    for name, address in interfaces():
        if ":" not in address:
            assert interface_towards(address) == name


@pytest.fixture
def store() -> Iterator[TCPStore]:
    """A store on the loopback."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        yield TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=10),
            master_listen_fd=listener.detach(),
        )


def test_gloo_is_told_the_interface_of_the_store(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(GLOO_INTERFACE, raising=False)
    with gloo_interface(PrefixStore("group", store)):
        assert os.environ[GLOO_INTERFACE] == "lo"
    assert GLOO_INTERFACE not in os.environ
    with gloo_interface(HashStore()):
        assert GLOO_INTERFACE not in os.environ


def test_the_users_interface_for_gloo_stays(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GLOO_INTERFACE, "ib0")
    with gloo_interface(store):
        assert os.environ[GLOO_INTERFACE] == "ib0"
    assert os.environ[GLOO_INTERFACE] == "ib0"


def test_warnings_of_cpp_are_hidden_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    before = level.value
    with hide_cpp_warnings():
        assert level.value == 2
    assert level.value == before
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    with hide_cpp_warnings():
        assert level.value == before
