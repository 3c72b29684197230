"""Every rank keeps the weights and works on a part of each batch; MPI adds up the gradients.

    mpiexec -n 2 python examples/03_library.py

Different from 02: no server. One call of the library leaves the sum on every rank, and all make the
same update of the same weights. Grown up: src/phalanx/scratch/schemes/library.py.
"""

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

EPOCHS, BATCH, RATE = 20, 50, 0.3
comm = MPI.COMM_WORLD

images, labels = load_digits(return_X_y=True)
images /= 16
num_train = 1500

weights = np.random.default_rng(0).normal(0, 0.1, 64 * 32 + 32 * 10)
gradient = np.zeros_like(weights)


def layers(vector):
    return vector[: 64 * 32].reshape(64, 32), vector[64 * 32 :].reshape(32, 10)


def forward(x):
    first, second = layers(weights)
    hidden = np.maximum(x @ first, 0)
    outputs = hidden @ second
    e = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return hidden, e / e.sum(axis=1, keepdims=True)


def backward(x, y, batch_size):
    hidden, error = forward(x)
    error[np.arange(len(y)), y] -= 1
    error /= batch_size
    by_first, by_second = layers(gradient)
    by_second[:] = hidden.T @ error
    by_first[:] = x.T @ (error @ layers(weights)[1].T * (hidden > 0))


order = np.random.default_rng(1)
for _ in range(EPOCHS):
    for batch in order.permutation(num_train).reshape(-1, BATCH):
        mine = np.array_split(batch, comm.size)[comm.rank]
        backward(images[mine], labels[mine], BATCH)
        comm.Allreduce(MPI.IN_PLACE, gradient)
        weights -= RATE * gradient

if comm.rank == 0:
    _, probabilities = forward(images[num_train:])
    right = (probabilities.argmax(axis=1) == labels[num_train:]).mean()
    print(f"{right:.1%} of digits never seen are read right; sum of weights {weights.sum():.6f}")
