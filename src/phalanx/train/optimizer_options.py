"""Options of the optimizer and learning rate. No torch, no MPI.

Annotations here are objects, not strings: see `parallel_options.py`.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from phalanx.errors import UserError
from phalanx.parallel.option_groups import BELOW_ONE, NOT_NEGATIVE, POSITIVE, Needs, ruled
from phalanx.records.schema import LearningRateRule, LearningRateSchedule

OptimizerName = Literal["adam", "adamw", "sgd", "lars", "lamb"]
WarmUp = Literal["linear", "cosine", "constant"]
NonFinitePolicy = Literal["stop", "skip"]

STEP = Needs("--lr-schedule step", lambda options: options.lr_schedule == "step")
POLYNOMIAL = Needs("--lr-schedule polynomial", lambda options: options.lr_schedule == "polynomial")
WARM_UP = Needs("--warmup-epochs", lambda options: options.warmup_epochs > 0)
MOMENTUM = Needs("--optimizer sgd and lars", lambda options: options.optimizer in ("sgd", "lars"))
LARS = Needs("--optimizer lars", lambda options: options.optimizer == "lars")


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Options of the optimizer and the learning rate."""

    lr: float = ruled(1e-3, POSITIVE)
    """Learning rate at its highest, for the default batch."""

    lr_rule: LearningRateRule = "none"
    """Rule by which the learning rate follows the global batch: `none`, `linear` or `sqrt` of batch
    ÷ default batch."""

    lr_schedule: LearningRateSchedule = "cosine"
    """Course after the warm-up: `cosine` or `polynomial` fall to nothing by the last step, `step`
    falls at --lr-milestones, `constant` stays."""

    lr_milestones: tuple[float, ...] = ruled((0.5, 0.75), STEP)
    """`step`: after which parts of the run the rate is multiplied by --lr-factor."""

    lr_factor: float = ruled(0.1, POSITIVE, STEP)
    """`step`: by what."""

    lr_power: float = ruled(2.0, POSITIVE, POLYNOMIAL)
    """`polynomial`: the power of what is left of the run."""

    warmup_epochs: float = ruled(0.0, NOT_NEGATIVE)
    """Epochs in which the rate rises to its highest; may be a fraction. 0: none."""

    warmup: WarmUp = ruled("linear", WARM_UP)
    """Course of the rise: `linear` or `cosine` from nothing, `constant` at a tenth of it."""

    optimizer: OptimizerName = "adam"
    """The update rule. `lars` and `lamb` scale each layer's step by its weights' norm."""

    momentum: float = ruled(0.9, NOT_NEGATIVE, MOMENTUM)
    """Momentum of `sgd` and `lars`."""

    weight_decay: float = ruled(0.0, NOT_NEGATIVE)
    """Weight decay of the optimizer."""

    trust_coefficient: float = ruled(1e-3, POSITIVE, LARS)
    """`lars`: how large a layer's step may be, against its weights."""

    label_smoothing: float = ruled(0.0, BELOW_ONE)
    """Probability that training targets give to the other classes."""

    clip_norm: float | None = ruled(None, POSITIVE)
    """Scale the gradient down to this norm, over all parameters and ranks. Default: never."""

    bad_gradients: NonFinitePolicy = "stop"
    """Policy for a gradient that is not finite: `stop` the run, or `skip` the step. Both name a
    parameter, and the ranks whose loss is not finite."""


def check_milestones(milestones: tuple[float, ...]) -> None:
    """Raise UserError when they are not increasing parts of the run."""
    if not all(0 < part < 1 for part in milestones) or any(b <= a for a, b in pairwise(milestones)):
        raise UserError(
            "--lr-milestones must be parts of the run, between 0 and 1, each later than the one "
            f"before, not {' '.join(map(str, milestones))}"
        )
