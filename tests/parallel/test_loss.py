"""A loss of one's own counts as many targets as it was the mean of, and padding for nothing."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.errors import UserError
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.loss import CrossEntropy, MeanLoss, sum_of_nothing
from phalanx.parallel.sequential import Sequential
from phalanx.parallel.step import IGNORED, Batch, StepOptions

SGD = OptimizerConfig(name="sgd", learning_rate=0.1)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def test_the_mean_of_a_micro_batch_counts_by_its_samples() -> None:
    outputs, targets = torch.rand(5, 3), torch.rand(5, 3)
    loss = MeanLoss(squares, targets_per_sample=4)
    assert loss.evaluate(outputs.requires_grad_(), targets, 5) == pytest.approx(
        20 * squares(outputs, targets).item()
    )
    assert loss.num_targets(Batch(outputs, targets, 5, 20, 0)) == 20
    assert loss.num_targets(Batch(outputs[:1], targets[:1], 0, 20, 0)) == 0


def test_cross_entropy_of_ones_own_is_the_built_in_one() -> None:
    logits = torch.rand(6, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.arange(6) % 4
    mine = MeanLoss(F.cross_entropy).sum_over(logits, targets, 6)
    assert mine.item() == pytest.approx(CrossEntropy().sum_over(logits, targets, 6).item())


def test_padding_is_never_seen_and_has_gradients_of_zero() -> None:
    def never(_outputs: Tensor, _targets: Tensor) -> Tensor:
        raise AssertionError

    layer = nn.Linear(2, 3)
    outputs = layer(torch.rand(1, 2))
    loss = MeanLoss(never).sum_over((outputs, {"more": outputs}), torch.full((1,), IGNORED), 0)
    loss.backward()
    assert loss.item() == 0
    assert not layer.weight.grad.any()  # type: ignore[union-attr]
    assert sum_of_nothing(torch.ones(2)).item() == 0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda o, _: o.mean(1), r"of shape \(4,\)"),
        (lambda o, _: o.mean().item(), "0-dim tensor"),
        (lambda o, _: o.mean().detach(), "without a graph"),
    ],
)
def test_what_is_no_mean_with_a_graph_is_refused(function, words: str) -> None:
    outputs = torch.rand(4, 3, requires_grad=True)
    with pytest.raises(UserError, match=words):
        MeanLoss(function).sum_over(outputs, torch.zeros(4), 4)


def test_micro_batches_of_uneven_sizes_make_the_same_step() -> None:
    """Seven samples in three micro-batches, then a padding sample; outputs are no one tensor."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            y = self.layer(x)
            return {"mean": y, "spread": y.square()}

    def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        return squares(outputs["mean"], targets) + outputs["spread"].mean()

    inputs, targets = torch.rand(7, 3), torch.rand(7, 2)
    found = []
    for accumulate in (1, 3):
        torch.manual_seed(0)
        strategy = Sequential(StepOptions(accumulate=accumulate))
        strategy.loss = MeanLoss(loss)
        strategy.prepare(Two(), SGD)
        result = strategy.step(Batch(inputs, targets, 7, 7, 0))
        assert result.logits is None
        padding = torch.full((1, 2), float(IGNORED))
        assert strategy.step(Batch(inputs[:1], padding, 0, 7, 1)).loss_sum == 0
        found.append((result.loss_sum, strategy.model.layer.weight.detach().clone()))
    assert found[0][0] == pytest.approx(found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])
