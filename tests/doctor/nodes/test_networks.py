"""Networks that lead nowhere: which MPI is kept from, and by what."""

from phalanx.doctor.nodes.networks import addresses_to_try, hosts_after, judge_networks
from phalanx.jobs.networks import network_variables

HOSTS = ("n0", "n1", "n2")
NETWORKS = {
    host: {
        "eth0": f"10.0.0.{number}/24",
        "eth1": f"10.1.0.{number}/24",
        "docker0": "172.17.0.1/16",  # a bridge of each node by itself
        "own": f"192.168.{number}.1/24",
    }
    for number, host in enumerate(HOSTS)
}


def test_every_node_tries_the_others_in_the_networks_that_they_share() -> None:
    assert addresses_to_try(NETWORKS)["n1"] == ["10.0.0.2", "10.0.0.0", "10.1.0.2", "10.1.0.0"]
    many = {f"n{number}": {"eth0": f"10.0.0.{number}/24"} for number in range(40)}
    assert {len(addresses) for addresses in addresses_to_try(many).values()} == {8}


def test_networks_that_all_lead_somewhere_are_left_to_mpi() -> None:
    networks = {host: {"eth0": NETWORKS[host]["eth0"]} for host in HOSTS}
    found = judge_networks(networks, dict.fromkeys(HOSTS, ()))
    assert list(found.usable) == ["10.0.0.0/24"]
    assert not found.has_others
    assert not found.findings


def test_a_bridge_with_one_address_on_all_nodes_is_none_to_use() -> None:
    found = judge_networks(NETWORKS, dict.fromkeys(HOSTS, ()))
    assert list(found.usable) == ["10.0.0.0/24", "10.1.0.0/24"]
    assert found.has_others
    assert not found.findings


def test_the_node_that_does_not_answer_in_a_network_is_named() -> None:
    lost = {"n0": ["10.1.0.1"], "n1": ["10.1.0.0", "10.1.0.2"], "n2": ["10.1.0.1"]}
    found = judge_networks(NETWORKS, lost)
    assert list(found.usable.values()) == ["eth0"]
    assert [(each.name, each.detail) for each in found.findings] == [
        ("n1", "its eth1 (10.1.0.1, network 10.1.0.0/24) does not answer n0, n2")
    ]


def test_nodes_without_any_network_that_leads_somewhere() -> None:
    networks = {host: {"eth0": NETWORKS[host]["eth0"]} for host in ("n0", "n1")}
    found = judge_networks(networks, {"n0": ["10.0.0.1"], "n1": ["10.0.0.0"]})
    assert not found.usable
    assert not found.has_others
    assert [each.name for each in found.findings] == ["n0"]


def test_each_mpi_is_told_in_its_own_words() -> None:
    networks = {"10.0.0.0/24": "eth0", "10.1.0.0/24": None}
    assert network_variables("openmpi", networks, {}) == {
        "OMPI_MCA_btl_tcp_if_include": "10.0.0.0/24,10.1.0.0/24",
        "PRTE_MCA_prte_if_include": "10.0.0.0/24",
    }
    found = network_variables("impi", networks, {})
    assert found == {"I_MPI_HYDRA_IFACE": "eth0", "FI_TCP_IFACE": "eth0"}
    assert set(network_variables("mpich", networks, {}).values()) == {"eth0"}
    assert network_variables("mpich", dict.fromkeys(networks), {}) == {}
    chosen = {"OMPI_MCA_btl_tcp_if_exclude": "docker0,lo"}
    assert network_variables("openmpi", networks, chosen) == {}


def test_of_a_thousand_nodes_each_is_tried_by_a_few() -> None:
    """Each node resolved the names of all others, within 2 s: those of good ones had no address."""
    hosts = [f"n{number}" for number in range(1000)]
    tried = [other for place in range(1000) for other in hosts_after(hosts, place)]
    assert {tried.count(host) for host in hosts[::97]} == {8}
    assert len(tried) == 8000
    assert hosts_after(["n0", "n1", "n2"], 1) == ["n2", "n0"]
