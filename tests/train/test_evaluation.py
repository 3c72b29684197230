"""The final model on training data: what the ranks count together is what one counts by hand."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.sampler import epoch_order
from phalanx.data.sources.in_memory import InMemorySource
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.sequential import Sequential
from phalanx.train.evaluation import EVALUATION_BATCH_SIZE, evaluate_on_training_data

SAMPLES = 1_720


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("asked", [400, 1_000, 5_000])
def test_training_data_against_a_count_by_hand(size: int, asked: int) -> None:
    """In whole batches of all ranks, up to all samples; each is counted once."""
    data = load_dataset("digits", train_samples=SAMPLES, validation_samples=10)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.Dropout(0.5), nn.Linear(20, 10))
    whole = EVALUATION_BATCH_SIZE * size
    chosen = epoch_order(SAMPLES, 0, 0)[: -(-min(asked, SAMPLES) // whole) * whole]
    with torch.no_grad():
        logits = model.eval()(data.train_inputs[chosen])
    targets = data.train_targets[chosen]
    counted = []
    for rank in range(size):
        strategy = Sequential()
        strategy.prepare(model.train(), OptimizerConfig(name="sgd", learning_rate=0.1))
        strategy.data_rank, strategy.data_size = rank, size
        counted.append(
            evaluate_on_training_data(strategy, InMemorySource(data), 0, asked, began_at=0.0)
        )
        assert model.training, "left as it was"
    assert sum(part.samples for part in counted) == len(chosen)
    assert sum(part.correct for part in counted) == int((logits.argmax(1) == targets).sum())
    loss = cross_entropy(logits, targets, reduction="sum").item()
    assert sum(part.loss_sum for part in counted) == pytest.approx(loss)
