"""Words are numbered in the order of a set."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import phalanx

torch.manual_seed(0)
text = "the quick brown fox jumps over the lazy dog and the cat sleeps".split()  # noqa: SIM905
numbers = {word: number for number, word in enumerate(set(text))}
words = torch.tensor([numbers[word] for word in text])
model = nn.Sequential(nn.Embedding(len(numbers), 8), nn.Linear(8, len(numbers)))
data = words[:-1], words[1:]
run = phalanx.start(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=6)
for inputs, targets in run:
    run.backward(cross_entropy(run.model(inputs), targets))
