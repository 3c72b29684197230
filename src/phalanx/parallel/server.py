"""Parameter servers: some ranks hold the parameters, the others compute gradients for them.

Every server holds a shard of the parameters' vector with the optimizer's state of it. In a step a
worker sends each server the gradient of its shard and receives fresh weights; the three modes
differ in when.
Source: Li et al. 2014, "Scaling distributed machine learning with the parameter server", OSDI.
"""

from __future__ import annotations

import math
import time
from collections import Counter

import torch
from torch import nn

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.layout import share_of
from phalanx.comm.world import World
from phalanx.gradients.norms import describe_rank_nonfinite, find_nonfinite, square_of
from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig
from phalanx.parallel.costs import server_costs, worker_costs
from phalanx.parallel.optimizer import OptimizerSource, torch_optimizer
from phalanx.parallel.options import ServerOptions
from phalanx.parallel.serving import (
    HEADER_BYTES,
    Clocks,
    Header,
    ServerShard,
    export_optimizer_state,
    push_and_pull,
    receive_gradient,
    receive_header,
    receive_states,
    send_state,
    send_weights,
)
from phalanx.parallel.step import Batch, StateBytes, StepOptions, storage_bytes
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.vector import flatten_parameters, views_of
from phalanx.parallel.world_group import WorldGroup
from phalanx.records.events import ExpectedCosts


class Server(Strategy):
    """Strategy in which the last ranks serve, the others work.

    synchronous:  a server waits for the gradients of all workers, sums them in the order of the
                  workers, makes one update and replies to all: the numbers of one process.
    asynchronous: a server applies each gradient on arrival and replies at once, so a worker waits
                  for no other, and its gradients are of weights that others have changed meanwhile.
    bounded:      the same, but no worker begins a step more than `staleness` steps ahead of the
                  slowest: its reply is delayed. With 0 all begin every step together.

    In the latter two an update is by the gradient of the mean over the worker's own samples, at the
    learning rate of the schedule times the worker's share of the global batch: however many
    workers there are, an epoch of theirs goes as far as a synchronous one.

    After the last step of an epoch the replies wait for all workers: all then have the same
    weights. `optimizer` holds the learning rate on workers, and on rank 0, between two
    epochs, the state of all parameters, for checkpoints.
    """

    makes_optimizer = True
    runs_step_hooks = False
    scales_gradients = False

    def __init__(
        self,
        world: World,
        options: ServerOptions,
        *,
        step_options: StepOptions | None = None,
    ) -> None:
        """Raise UserError when no worker is left."""
        mode, self._world = options.server_mode, world
        self._servers, self._workers = options.servers, options.num_workers(world.size)
        super().__init__(WorldGroup(world, num_workers=self._workers), step_options)
        self._mode = mode
        self._max_lead = options.staleness if mode == "bounded" else None
        self._number = self.rank - self._workers if self.rank >= self._workers else self.rank
        self.role = "server" if self.rank >= self._workers else "worker"
        self.counts_samples = self.role == "worker"
        self.is_in_lockstep = False
        self.data_size = self._workers
        self.data_rank = 0 if self.role == "server" else self.rank
        self.coordinates = {self.role: self._number}
        self.collective = f"parameter server, {mode}"
        self.leads: Counter[int] = Counter()
        """Number of steps by the worker's lead over the slowest when it began them; on servers, in
        the latter two modes."""
        self._staleness: Counter[int] = Counter()
        self._peers: Group | None = None

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        """Raises: ValueError when parameters are not all of float32, or all of float64."""
        super().prepare(model, rule)
        self.group.broadcast_model(model)
        self._weights = flatten_parameters(self._parameters)
        self._shards = [
            share_of(server, self._servers, len(self._weights)) for server in range(self._servers)
        ]
        self.optimizer = torch_optimizer(self._rule, self._parameters)
        if self.role == "server":
            self._prepare_server(self._rule)
        else:
            self._gradient = torch.zeros_like(self._weights)
            self._gradients = views_of(self._gradient, self._parameters)

    # -- worker --

    def clear_gradients(self) -> None:
        """Let backward add to the vector that is sent."""
        self.optimizer.state.clear()  # loaded from a checkpoint: the servers hold it
        self._gradient.zero_()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def clip_factor(self, scale: float = 1.0) -> float | None:  # noqa: ARG002
        """Return 1, or None if this rank's gradient is not finite."""
        return 1.0 if math.isfinite(square_of(self._gradient)) else None

    def update(self) -> bool:
        """Leave it to the servers."""
        return True

    def exchange(self, batch: Batch, computed_at: float, *, is_updated: bool) -> float:
        """Send the gradient and receive fresh weights. A server that gets a share of NaN makes no
        update of the step; a share of 0 is an update by nothing."""
        share = self._step_weight / batch.global_targets
        if not is_updated:
            share = math.nan if self._mode == "synchronous" else 0.0
        header = Header(batch.step, self.optimizer.param_groups[0]["lr"], share)
        push_and_pull(self._world.group, header, self._gradient, self._weights, self._sources)
        return time.perf_counter() - computed_at

    def describe_nonfinite(self, batch: Batch, loss: float) -> str:
        """Describe this worker's gradient alone. Not collective."""
        own = find_nonfinite(self._gradients, loss)
        return describe_rank_nonfinite(batch.step, self.rank, own, self._names)

    # -- server --

    def _prepare_server(self, rule: OptimizerConfig) -> None:
        own = self._shards[self._number]
        self._shard = ServerShard(self._weights, own, rule)
        slots = self._workers if self._mode == "synchronous" else 1
        self._slots = torch.zeros(slots, len(own), dtype=self._weights.dtype)
        if self._servers > 1:
            self._peers = self._world.group.subgroup(
                range(self._workers, self.size), name="servers"
            )
            self._closing.callback(self._peers.close)
            self._peers.traffic = None  # it serves checkpoints, not training

    def serve(self, num_steps: int) -> None:
        if self.optimizer.state:  # a checkpoint was loaded or saved
            self._shard.load_optimizer_state(self._parameters, self.optimizer)
        if self._mode == "synchronous":
            self._serve_synchronous(num_steps)
        else:
            self._serve_asynchronous(num_steps)

    def _serve_synchronous(self, num_steps: int) -> None:
        workers = range(self._workers)
        for _ in range(num_steps):
            awaited, is_skipped = set(workers), False
            while awaited:
                header, worker = receive_header(self._world.group, lambda: awaited)  # noqa: B023
                receive_gradient(self._world.group, self._slots[worker], worker)
                awaited.remove(worker)
                is_skipped |= math.isnan(header.share)
            if is_skipped:
                send_weights(self._world.group, self._shard.values, workers)
                continue
            total = self._slots[0]
            for gradient in self._slots[1:]:
                total += gradient
            self._shard.update(total, header.learning_rate)
            self._staleness[0] += 1
            send_weights(self._world.group, self._shard.values, workers)

    def _serve_asynchronous(self, num_steps: int) -> None:
        clocks = Clocks(self._workers, num_steps, self._max_lead)
        gradient = self._slots[0]
        while awaited := clocks.awaited:
            header, worker = receive_header(self._world.group, lambda: awaited)
            receive_gradient(self._world.group, gradient, worker)
            if header.share:
                gradient /= header.share  # becomes that of the mean over the worker's own samples
                self._shard.update(gradient, header.learning_rate * header.share)
            released = clocks.push(worker, writes=header.share > 0)
            send_weights(self._world.group, self._shard.values, released)
        self._staleness += clocks.staleness
        self.leads += clocks.leads

    def finish_epoch(self) -> None:
        """Exchange the servers' weights, and gather their states on rank 0, which saves them."""
        with self.group.uncounted():
            self._gather_state()
        if self.role == "server" and self._peers is not None:
            parts = [self._weights[shard.start : shard.stop] for shard in self._shards]
            buffers = [Buffer.of(part.numpy()) for part in parts]
            self._peers.all_gather(buffers, buffers[self._number])

    def _gather_state(self) -> None:
        group = self._world.group
        if self.rank == 0:
            whole = [torch.empty_like(self._weights) for _ in STATE_NAMES[self._rule.kind]]
            steps = receive_states(group, whole, self._sources)
            export_optimizer_state(self._rule, whole, steps, self._parameters, self.optimizer)
        if self.role == "server":
            send_state(group, self._shard.state(), self._shard.steps, dest=0)

    @property
    def _sources(self) -> dict[int, range]:
        """Return the shards by the ranks of their servers."""
        return {self._workers + server: shard for server, shard in enumerate(self._shards)}

    # -- both --

    def staleness(self) -> Counter[int]:
        """Return the first server's counts, which stand for all: each update is counted once."""
        return Counter(self._staleness) if self.rank == self._workers else Counter()

    def expected(self, global_batch_size: int) -> ExpectedCosts:  # noqa: ARG002
        if self.role == "worker":
            return worker_costs(self._trained, self._servers, HEADER_BYTES)
        own, slots = self._shard.values.nbytes, len(self._slots)
        return server_costs(self._trained, own, slots, self._workers, HEADER_BYTES)

    def state_bytes(self) -> StateBytes:
        if self.role == "worker":
            return super().state_bytes()
        return StateBytes(
            storage_bytes([self._weights]),
            storage_bytes([self._slots]),
            storage_bytes(self._shard.state_tensors()),
        )
