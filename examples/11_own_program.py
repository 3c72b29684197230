"""Your own program: the loop, the loss and the optimizer stay yours.

    python examples/11_own_program.py
    mpiexec -n 2 python examples/11_own_program.py

Different from 07: `phalanx.start` cuts the global batches, so that no line mentions ranks.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import phalanx

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
labels = torch.tensor(labels)
train, validation = (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


def accuracy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the share of a batch that is classified correctly."""
    return (model(batch[0]).argmax(1) == batch[1]).float().mean()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

run = phalanx.start(model, optimizer, train, batch_size=50, epochs=20)
for batch in run:
    loss = cross_entropy(run.model(batch.inputs), batch.targets)
    run.backward(loss)

right = run.evaluate(accuracy, validation)
run.print(f"{right:.1%} of digits never seen are read right, by {run.size} ranks")
