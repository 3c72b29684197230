"""Record of a step, from what the loop has noted of it. Pure."""

from __future__ import annotations

from phalanx.records.events import StepEvent


def step_record(
    origin: float,
    epoch: int,
    step: int,
    samples: int,
    loss_sum: float,
    began: float,
    loaded_at: float,
    ended: float,
    forward_s: float,
    backward_s: float,
    communication_s: float,
    hidden_s: float | None,
    last_bucket_s: float | None,
    why_skipped: str,
    grad_norm: float | None = None,
    node_s: float | None = None,
    network_s: float | None = None,
) -> StepEvent:
    """origin: what `at_s` counts from. began: when the step before ended; all on one clock."""
    timed_s = forward_s + backward_s + communication_s
    return StepEvent(
        at_s=ended - origin,
        epoch=epoch,
        step=step,
        samples=samples,
        loss_sum=loss_sum,
        data_s=loaded_at - began,
        forward_s=forward_s,
        backward_s=backward_s,
        communication_s=communication_s,
        optimizer_s=max(0.0, ended - loaded_at - timed_s),
        hidden_s=hidden_s,
        last_bucket_s=last_bucket_s,
        is_skipped=bool(why_skipped),
        node_s=node_s,
        network_s=network_s,
        grad_norm=grad_norm,
    )
