"""Every rank keeps a part of both layers, and all work on the same images.

    mpiexec -n 2 python examples/05_tensor.py

Different from 03: weights are cut instead of batches. A rank has some columns of the first matrix,
and computes some of the hidden values; it has the rows of the second that these meet, and gets a
part of every output's sum. Adding up outputs, 50 × 10 numbers, is all that the ranks ever say:
gradients stay at home. Grown up, for any number of layers: src/phalanx/scratch/schemes/tensor.py.
"""

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

EPOCHS, BATCH, RATE = 20, 50, 0.3
comm = MPI.COMM_WORLD

images, labels = load_digits(return_X_y=True)
images /= 16
num_train = 1500

whole = np.random.default_rng(0).normal(0, 0.1, 64 * 32 + 32 * 10)
mine = np.array_split(np.arange(32), comm.size)[comm.rank]  # the hidden values of this rank
first = whole[: 64 * 32].reshape(64, 32)[:, mine]
second = whole[64 * 32 :].reshape(32, 10)[mine, :]


def forward(x):
    hidden = np.maximum(x @ first, 0)
    outputs = hidden @ second
    comm.Allreduce(MPI.IN_PLACE, outputs)
    e = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return hidden, e / e.sum(axis=1, keepdims=True)


def backward(x, y, batch_size):
    hidden, error = forward(x)
    error[np.arange(len(y)), y] -= 1
    error /= batch_size
    return x.T @ (error @ second.T * (hidden > 0)), hidden.T @ error


order = np.random.default_rng(1)
for _ in range(EPOCHS):
    for batch in order.permutation(num_train).reshape(-1, BATCH):
        by_first, by_second = backward(images[batch], labels[batch], BATCH)
        first -= RATE * by_first
        second -= RATE * by_second

_, probabilities = forward(images[num_train:])
right = (probabilities.argmax(axis=1) == labels[num_train:]).mean()
total = comm.allreduce(first.sum() + second.sum())
if comm.rank == 0:
    print(f"{right:.1%} of digits never seen are read right; sum of weights {total:.6f}")
