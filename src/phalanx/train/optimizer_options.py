"""Options of the optimizer and learning rate, validated where they are made. No torch, no MPI.

Annotations here are objects, not strings: see `parallel_options.py`.
"""

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UserError
from phalanx.records.schema import LearningRateRule, LearningRateSchedule
from phalanx.train.parallel_options import option

OptimizerName = Literal["adam", "adamw", "sgd", "lars", "lamb"]
WarmUp = Literal["linear", "cosine", "constant"]
NonFinitePolicy = Literal["stop", "skip"]


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Options of the optimizer and the learning rate."""

    lr: float = 1e-3
    """Learning rate at its highest, for the default batch."""

    lr_rule: LearningRateRule = "none"
    """How the learning rate follows the global batch: `none`, `linear` or `sqrt` of batch ÷
    default batch."""

    lr_schedule: LearningRateSchedule = "cosine"
    """Course after the warm-up: `cosine` or `polynomial` fall to nothing by the last step, `step`
    falls at --lr-milestones, `constant` stays."""

    lr_milestones: tuple[float, ...] = (0.5, 0.75)
    """`step`: after which parts of the run the rate is multiplied by --lr-factor."""

    lr_factor: float = 0.1
    """`step`: by what."""

    lr_power: float = 2.0
    """`polynomial`: the power of what is left of the run."""

    warmup_epochs: float = 0.0
    """Epochs in which the rate rises to its highest; may be a fraction. 0: none."""

    warmup: WarmUp = "linear"
    """How it rises: `linear` or `cosine` from nothing, `constant` at a tenth of it."""

    optimizer: OptimizerName = "adam"
    """The update rule. `lars` and `lamb` scale each layer's step by its weights' norm."""

    momentum: float = 0.9
    """Momentum of `sgd` and `lars`."""

    weight_decay: float = 0.0
    """Weight decay of the optimizer."""

    trust_coefficient: float = 1e-3
    """`lars`: how large a layer's step may be, against its weights."""

    label_smoothing: float = 0.0
    """Probability that training targets give to the other classes."""

    clip_norm: float | None = None
    """Scale the gradient down to this norm, over all parameters and ranks. Default: never."""

    bad_gradients: NonFinitePolicy = "stop"
    """What follows when a gradient is not finite: `stop` the run, or `skip` the step. Both name
    rank and parameter."""

    def check_optimizer(self) -> None:
        """Raise UserError for values that no run could use."""
        for name in ("lr", "lr_factor", "lr_power", "trust_coefficient", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{option(name)} must be positive, not {value}")
        for name in ("momentum", "weight_decay", "warmup_epochs"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{option(name)} must not be negative, not {getattr(self, name)}")
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"--label-smoothing must be in [0, 1), not {self.label_smoothing}")
        if any(not 0 < part < 1 for part in self.lr_milestones) or any(
            later <= earlier
            for earlier, later in zip(self.lr_milestones, self.lr_milestones[1:], strict=False)
        ):
            raise UserError(
                "--lr-milestones must be parts of the run, between 0 and 1, each later than the "
                f"one before, not {' '.join(map(str, self.lr_milestones))}"
            )
