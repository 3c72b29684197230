"""Two networks learn which halves of digits belong together, by a loss over all pairs of a batch.

    python examples/15_contrastive.py
    phalanx launch -n 3 examples/15_contrastive.py

Different from 11: the loss depends on several samples at once, so `run.gather` brings the rows of
all ranks to each. The results are the same on any number of ranks.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import phalanx

torch.set_default_dtype(torch.float64)
images = torch.tensor(load_digits().data / 16)
train, validation = images[:1536].split(32, 1), images[1536:].split(32, 1)


class Halves(nn.Module):
    """An encoder for each half of an image, and a learned scale of the similarities."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.bottom = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, top: Tensor, bottom: Tensor) -> tuple[Tensor, Tensor]:
        return normalize(self.top(top)), normalize(self.bottom(bottom))


def info_nce(top: Tensor, bottom: Tensor, scale: Tensor) -> Tensor:
    """Return the InfoNCE loss: how badly rows of one side find their partners on the other."""
    scores, own = scale.exp() * top @ bottom.T, torch.arange(len(top))
    return (cross_entropy(scores, own) + cross_entropy(scores.T, own)) / 2


torch.manual_seed(0)
model = Halves()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

run = phalanx.start(model, optimizer, tuple(train), batch_size=100, epochs=10)
for epoch in run.epochs():
    for batch in epoch:
        top, bottom = run.model(*batch.data)
        loss = info_nce(run.gather(top), run.gather(bottom), model.scale)
        run.backward(loss)
    run.print(f"epoch {epoch.number + 1}: loss {run.training_loss():.12f}")

with torch.no_grad():
    top, bottom = model(*validation)
found = ((top @ bottom.T).argmax(1) == torch.arange(len(top))).double().mean()
run.print(f"{found:.1%} of halves never seen are found, by {run.size} ranks")
