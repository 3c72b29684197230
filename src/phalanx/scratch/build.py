"""Construction of a scheme from options: this rank's network, optimizer and communication."""

from __future__ import annotations

from phalanx.comm.group import Group
from phalanx.scratch.config import ScratchConfig
from phalanx.scratch.momentum import Momentum
from phalanx.scratch.network import FeedForwardNetwork, multilayer
from phalanx.scratch.partition import partition_layers
from phalanx.scratch.schemes.library import Library
from phalanx.scratch.schemes.ring import Ring
from phalanx.scratch.schemes.scheme import Scheme
from phalanx.scratch.schemes.server import ParameterServer, Worker
from phalanx.scratch.schemes.single_process import SingleProcess
from phalanx.scratch.schemes.tensor import Tensor, TensorCommunicator, tensor_network


def build_scheme(config: ScratchConfig, group: Group | None) -> Scheme:
    """`config` is complete; group: of all ranks, None for `alone`."""
    if config.scheme == "tensor":
        return _tensor(config, _require_group(group))
    network = multilayer(config.sizes, config.activation, seed=config.seed, dtype=config.dtype)
    match config.scheme:
        case "alone":
            return SingleProcess(network, _optimizer(config, network))
        case "library":
            return Library(network, _optimizer(config, network), _require_group(group))
        case "ring":
            return Ring(network, _optimizer(config, network), _require_group(group))
        case "server":
            return _worker_or_server(config, network, _require_group(group))


def _tensor(config: ScratchConfig, group: Group) -> Tensor:
    layers, communicator = partition_layers(config.sizes, group.size), TensorCommunicator(group)
    network = tensor_network(
        layers, config.activation, communicator, seed=config.seed, dtype=config.dtype
    )
    return Tensor(network, _optimizer(config, network), communicator, layers)


def _worker_or_server(
    config: ScratchConfig, network: FeedForwardNetwork, group: Group
) -> Worker | ParameterServer:
    assert config.servers is not None, "complete() comes first"
    if group.rank >= config.servers:
        return Worker(network, group, servers=config.servers)
    return ParameterServer(
        network.parameters,
        group,
        servers=config.servers,
        lr=config.lr,
        momentum=config.momentum,
    )


def _optimizer(config: ScratchConfig, network: FeedForwardNetwork) -> Momentum:
    return Momentum(network.parameters, lr=config.lr, momentum=config.momentum)


def _require_group(group: Group | None) -> Group:
    assert group is not None, "every scheme but `alone` has a group"
    return group
