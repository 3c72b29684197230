"""Memory of parameters that some ranks own, each of which updates its shard there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.comm.memory import allocate_shared
from phalanx.comm.set_up import SetupCommunicator
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.flat_grad_buffer import node_detector, node_members
from phalanx.parallel.world_group import WorldGroup
from phalanx.torch_backend.tensors import buffer_of


class ParameterMemory:
    """Memory of the parameters, the owners of which are some ranks; here each rank has memory of
    its own: all ranks are owners, and send each other what they have updated."""

    name = "zero"
    """Name of the strategy."""
    is_shared = False
    """True if the owners see one piece of memory."""
    are_owners_alone = True
    """True if no rank but the owner needs a parameter's gradient."""
    formula = "Ψ"
    """Parameters that a rank holds, in formulas; Ψ: their number."""

    def __init__(self, group: WorldGroup) -> None:
        """group: of all ranks, some of which may be lost later."""
        self._group = group

    @property
    def world(self) -> World:
        """World of the ranks that live."""
        return self._group.world

    def owners(self) -> Mapping[int, int]:
        """Return the owners that live, by the numbers that they started with, and their nodes."""
        world = self.world
        return dict(zip(world.original_ranks, world.group.nodes, strict=True))

    def allocate(self, num_bytes: int) -> Tensor:
        """Return the memory, (num_bytes,) uint8, zeros. Collective."""
        return torch.zeros(num_bytes, dtype=torch.uint8, device="cpu")

    def share(self, shards: Sequence[Tensor], owners: Sequence[int]) -> None:
        """Bring every rank what others have updated. owners: ranks of the world, one a shard.
        Collective."""
        world, buffers = self.world, list(map(buffer_of, shards))
        if world.size == 1:
            return
        if list(owners) == list(range(world.size)):
            world.group.all_gather(buffers, buffers[world.rank])
            return
        for buffer, owner in zip(buffers, owners, strict=True):  # ranks were lost
            world.group.broadcast(buffer, root=owner)


class NodeMemory(ParameterMemory):
    """Memory that the ranks of a node share, who are the owners; every node makes the same
    updates."""

    name = "shared"
    is_shared, are_owners_alone = True, False

    def __init__(self, group: WorldGroup) -> None:
        super().__init__(group)
        self.formula = f"Ψ/{'p' if self.world.on_one_node else 'k'}"

    def owners(self) -> Mapping[int, int]:
        world = self.world
        ranks = node_members(world)
        return {world.original_ranks[rank]: world.group.nodes[rank] for rank in ranks}

    def allocate(self, num_bytes: int) -> Tensor:
        """Raises: UserError where there is no such memory."""
        world = self.world
        detector = node_detector(world, "parameters")
        memory = allocate_shared(SetupCommunicator(world.node, detector), num_bytes)
        detector.close()
        without = np.array([float(memory is None)])
        world.all_reduce(without)
        if memory is None or any(without):
            raise UserError(
                "--strategy shared needs shared memory, which these ranks lack: use --strategy mpi "
                "(`phalanx doctor` shows the cause)"
            )
        return torch.from_numpy(memory.array())

    def share(self, shards: Sequence[Tensor], owners: Sequence[int]) -> None:  # noqa: ARG002
        self.world.barrier("the update")


class OneCopy:
    """Check of parameters of which the ranks of a node have one copy: a program that changes one
    in place, as weight decay by hand does, would do so once on every rank. By the counters that
    autograd keeps, which changes by way of `.data` pass over."""

    def __init__(self, names: Sequence[str], parameters: Sequence[nn.Parameter]) -> None:
        self._names, self._parameters = list(names), list(parameters)
        self._versions: list[int] | None = None

    def check(self) -> None:
        """Call before each update. Raises: UserError for a parameter that was changed since the
        last `note`, or else the first check."""
        if self._versions is None:
            self.note()
            return
        for name, parameter, known in zip(
            self._names, self._parameters, self._versions, strict=True
        ):
            if parameter._version != known:
                raise UserError(
                    f'{name} was changed in place between two steps, but under strategy="shared" '
                    "the ranks of a node have one copy, so the change was made once per rank: use "
                    'strategy="mpi"'
                )

    def note(self) -> None:
        """Call after each update that changes them in place on this rank."""
        self._versions = [parameter._version for parameter in self._parameters]
