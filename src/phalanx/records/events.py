"""Format of the lines of `rank-<r>.jsonl`, one an event.

Ranks write *sums* over their own samples (`loss_sum`, `correct`, `samples`), so that adding the
ranks up gives the value over the global batch exactly, whatever the sharding.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FaultKind = Literal["kill", "stop", "terminate"]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """A line of `rank-<r>.jsonl`. `at_s`: seconds since this rank began, monotonic."""

    at_s: float


class ExpectedCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one rank by the formulas of its scheme; None where there is no formula."""

    sent_bytes: float | None = None  # a step
    received_bytes: float | None = None  # a step
    traffic_formula: str | None = None  # text for display, e.g. "2(p−1)/p · 4Ψ"
    state_bytes: float | None = None  # parameters, gradients and optimizer state
    state_formula: str | None = None  # e.g. "4Ψ + 12Ψ/p"
    bubble: float | None = None  # idle share of a pipeline's step


class StartedEvent(Event, frozen=True, kw_only=True, tag="started"):
    rank: int  # number of the rank
    hostname: str  # name of the node
    process_id: int  # number of the process on its node
    local_rank: int  # number of the rank on its node
    threads: int  # threads per rank
    startup_s: float  # process start to the begin of training
    parameters: int  # number of trainable values
    train_samples: int  # size of the full data set, not of this rank's shard
    validation_samples: int  # validation samples over all ranks
    targets_per_sample: int = 1  # predictions a sample: the tokens of a text
    collective: str | None = None  # all-reduce algorithm of the gradients
    role: str = "worker"  # or "server"
    coordinates: dict[str, int] = {}  # position per axis of the mesh
    device: str = "cpu"  # includes its index, such as cuda:1
    expected: ExpectedCosts | None = None  # costs of this rank by theory
    time_s: float | None = None  # Unix time of this event; None in records of an older Phalanx


class StepEvent(Event, frozen=True, kw_only=True, tag="step"):
    """One update on this rank's part of the global batch."""

    epoch: int  # number of the epoch, from 0
    step: int  # counts on over the epochs, from 0
    samples: int  # samples that this rank processed
    loss_sum: float  # losses before the update
    data_s: float  # seconds until the batch was there
    forward_s: float  # seconds in the forward pass
    backward_s: float  # seconds in the backward pass
    communication_s: float  # exposed: time that the step waited
    optimizer_s: float  # seconds in the optimizer
    hidden_s: float | None = None  # communication during backward
    last_bucket_s: float | None = None  # time of the last bucket, which cannot be hidden
    is_skipped: bool = False  # a gradient was not finite
    # Exchanges with ranks of this node alone, and with those of other nodes: waiting for them
    # included, and what is hidden behind the backward pass. None where not measured.
    node_s: float | None = None
    network_s: float | None = None
    grad_norm: float | None = None  # norm over all parameters, before clipping; None: no clip


class SkippedEvent(Event, frozen=True, kw_only=True, tag="skipped"):
    """A step that changed nothing, on every rank that knows of it."""

    epoch: int  # number of the epoch, from 0
    step: int  # number of the step, from 0
    reason: str  # names rank and parameter


class EpochEvent(Event, frozen=True, kw_only=True, tag="epoch"):
    """One pass over the training data on this rank, from barrier to barrier."""

    epoch: int  # number of the epoch, from 0
    train_s: float  # seconds of training, without evaluation
    samples: int  # samples that this rank processed
    loss_sum: float  # sum of the losses of these samples
    correct: int | None  # None where the loss asks for no classes
    communicated_bytes: int  # gradient bytes passed to all-reduce by this rank
    sent_bytes: int | None = None  # counted; None where not counted
    received_bytes: int | None = None  # bytes received from peers, None if not counted
    # Bytes to and from other nodes, a part of these. None if not counted, as by an older Phalanx.
    network_sent_bytes: int | None = None
    network_received_bytes: int | None = None
    formula_bytes: int | None = None  # part of `sent_bytes`: those of the MPI library, by formula
    staleness: dict[int, int] = {}  # updates by the number of others between read and write
    first_sample: int = 0  # samples of the epoch, over all ranks, that an earlier run trained on
    damaged: int = 0  # samples of this rank left out because they are corrupt
    # Processor time of all threads of the rank within `train_s`; waiting for others counts as far
    # as it spins. None in records of an older Phalanx.
    user_s: float | None = None
    system_s: float | None = None


class ActionEvent(Event, frozen=True, kw_only=True, tag="action"):
    """One action of a pipeline's step on this rank."""

    step: int  # number of the step, from 0
    stage: int  # number of the pipeline stage
    micro_batch: int  # number of the micro-batch
    kind: Literal["forward", "backward", "input gradient", "weight gradient"]  # computation
    began_s: float  # time on a clock that all ranks of the run share
    ended_s: float  # time on the same clock


class EvaluationEvent(Event, frozen=True, kw_only=True, tag="evaluation"):
    """This rank's part of the validation data after an epoch."""

    epoch: int  # number of the epoch, from 0
    evaluation_s: float  # seconds in the evaluation
    samples: int  # samples that this rank processed
    loss_sum: float  # sum of the losses of these samples
    correct: int | None  # None where the loss asks for no classes


class TrainingEvaluationEvent(Event, frozen=True, kw_only=True, tag="training evaluation"):
    """The final model against this rank's share of some of the training data."""

    epoch: int  # number of the epoch, from 0
    evaluation_s: float  # seconds in the evaluation
    samples: int  # samples that this rank processed
    loss_sum: float  # sum of the losses of these samples
    correct: int | None  # None where the loss asks for no classes


class SummaryEvent(Event, frozen=True, kw_only=True, tag="summary"):
    """Written by rank 0 after an epoch, from all ranks."""

    epoch: int  # number of the epoch, from 0
    epoch_s: float  # training time of the slowest rank
    trained_s: float  # sum of epoch_s so far
    images_per_s: float  # samples per second over all ranks
    communication_share: float  # exposed communication ÷ training time, mean over ranks
    train_loss: float  # mean loss of the training samples
    train_accuracy: float | None  # share of them that was right, None where it has no meaning
    validation_loss: float | None  # None where nothing was evaluated
    validation_accuracy: float | None  # the same of the validation samples
    damaged: int = 0  # training samples left out
    skipped: int = 0  # steps, of the rank that skipped most


class SavedEvent(Event, frozen=True, kw_only=True, tag="saved"):
    epoch: int  # number of the epoch, from 0
    path: str  # folder of the checkpoint
    save_s: float  # seconds to write it
    bytes: int  # size of its files
    written_s: float | None = None  # write by a thread, beside the steps; None: they waited, save_s


class MemoryEvent(Event, frozen=True, kw_only=True, tag="memory"):
    """Bytes of training state that a rank holds, measured once, after the first steps."""

    parameters_bytes: int  # bytes of this rank's parameters
    gradients_bytes: int  # bytes at the end of the backward pass
    optimizer_bytes: int  # bytes of this rank's optimizer state
    resident_bytes: int | None = None  # growth of the process since before the model was built


class NoticeEvent(Event, frozen=True, kw_only=True, tag="notice"):
    """Message for the user about something that does not end the run."""

    text: str  # the line


class MetricsEvent(Event, frozen=True, kw_only=True, tag="metrics"):
    """A program's own metrics after a step, written by rank 0."""

    epoch: int  # number of the epoch, from 0
    step: int  # number of the step, from 0
    metrics: dict[str, float]  # values by name


class RecoveredEvent(Event, frozen=True, kw_only=True, tag="recovered"):
    """Ranks have died, and this one goes on without them."""

    step: int  # updates that all survivors had made
    lost: list[int]  # original ranks
    recovery_s: float  # time between the notice and the new world


class ReplacedEvent(Event, frozen=True, kw_only=True, tag="replaced"):
    """Spares have taken the places of ranks that died, between two steps."""

    step: int  # updates made
    spares: list[int]  # original ranks
    lost: list[int]  # ranks whose places they took
    seconds: float  # time since the death was noticed


class InjectedEvent(Event, frozen=True, kw_only=True, tag="injected"):
    """A fault that is about to strike this rank, as it was asked for."""

    time_s: float  # Unix time of the fault
    kind: FaultKind  # kind of the fault
    rank: int  # original rank
    step: int  # updates made
    pause_s: float | None = None  # length of a stop; None: the rank never continues


class SlowRankEvent(Event, frozen=True, kw_only=True, tag="slow rank"):
    """A rank takes much longer than the others; written by rank 0."""

    step: int  # updates made
    name: str  # `rank 3`, or `rank 3 on host b`: the number that it started with
    phase: str  # data, forward, backward or optimizer: in which it loses most
    ratio: float  # time of that phase ÷ median of the other ranks, for as many micro-batches
    steps: int  # number of slow steps


class RebalancedEvent(Event, frozen=True, kw_only=True, tag="rebalanced"):
    """The micro-batches of a global batch were divided among the ranks anew; written by rank 0."""

    step: int  # the first with these
    former: list[int]  # micro-batches of each rank
    micro_batches: list[int]  # micro-batches of each rank from now on


class StoppedEvent(Event, frozen=True, kw_only=True, tag="stopped"):
    """The last line of a rank that ended early, as asked, after a checkpoint."""

    step: int  # updates made


def stopped_text(step: int) -> str:
    """Say how such a run ended. step: updates made."""
    return f"stopped after step {step}, as asked, with a checkpoint to resume from"


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The bits with which a bitwise run ended, and what they depend on beside data and options."""

    sha256: str  # hash of parameters, buffers and optimizer state
    steps: int  # number of steps
    micro_batches: int  # number per global batch
    threads: int  # threads per rank
    torch: str  # version of PyTorch
    torch_build: str  # hash of torch.__config__
    instruction_set: str  # instruction set that torch uses
    strategy: str  # name of the strategy


def certificate_text(certificate: Certificate) -> str:
    """Return a certificate in one line."""
    threads = f"{certificate.threads} thread{'s' * (certificate.threads != 1)}"
    return (
        f"bitwise: SHA-256 {certificate.sha256} after {certificate.steps} steps of "
        f"{certificate.micro_batches} micro-batches ({threads}, torch {certificate.torch}, "
        f"{certificate.instruction_set})"
    )


class DigestNamesEvent(Event, frozen=True, kw_only=True, tag="digest names"):
    """Digests of a bitwise run's model before its first step, written by rank 0."""

    names: list[str]  # names of tensors; "first … last" for several that share a digest
    digests: str  # 16 hexadecimal digits for each name


class DigestEvent(Event, frozen=True, kw_only=True, tag="digest"):
    """The same after a step."""

    step: int  # number of the step, from 0
    digests: str  # 16 hexadecimal digits for each name


class FinishedEvent(Event, frozen=True, kw_only=True, tag="finished"):
    """The last line of a rank that came to the end."""

    parameters_sha256: str  # hash of all parameters
    peak_memory_bytes: int  # largest resident memory of this rank
    certificate: Certificate | None = None  # None unless the run is bitwise
