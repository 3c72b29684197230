"""A model of one's own: frozen layers stay as they are, batch norm has one set of statistics."""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from phalanx.errors import UserError
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from tests.conftest import Ranks

STRATEGIES = (
    "mpi", "overlap", "shared", "local", "server", "zero", "gloo", "replicas", "zero 2", "zero 3"
)  # fmt: skip


@pytest.mark.mpi
@pytest.mark.timeout(300)
def test_frozen_layers_and_batch_norm(ranks: Ranks, programs: Callable[[str], Path]) -> None:
    output = ranks.mpi(3, programs("own_model.py"), ",".join(STRATEGIES), timeout_s=200)
    for name in STRATEGIES:
        assert f"{name} is right" in output, output


def test_a_model_that_is_all_frozen_is_refused() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(UserError, match="no parameter that requires a gradient"):
        Replicas(RunGroup()).prepare(model, OptimizerConfig(name="sgd", learning_rate=0.1))
