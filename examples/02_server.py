"""Rank 0 keeps the weights; the others work on parts of each batch and send it their gradients.

    mpiexec -n 3 python examples/02_server.py

Different from 01: a batch is shared among workers, and a step is a conversation: weights go out,
gradients come in, the server updates. Everything passes through one rank, which is the drawback.
Grown up, with several servers: src/phalanx/scratch/schemes/server.py.
"""

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

EPOCHS, BATCH, RATE = 20, 50, 0.3
comm = MPI.COMM_WORLD
SERVER, workers = 0, range(1, comm.size)

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
        if comm.rank == SERVER:
            for worker in workers:
                comm.Send(weights, dest=worker)
            for worker in workers:
                comm.Recv(gradient, source=worker)
                weights -= RATE * gradient
        else:
            mine = np.array_split(batch, len(workers))[comm.rank - 1]
            comm.Recv(weights, source=SERVER)
            backward(images[mine], labels[mine], BATCH)
            comm.Send(gradient, dest=SERVER)

if comm.rank == SERVER:
    _, probabilities = forward(images[num_train:])
    right = (probabilities.argmax(axis=1) == labels[num_train:]).mean()
    print(f"{right:.1%} of digits never seen are read right; sum of weights {weights.sum():.6f}")
