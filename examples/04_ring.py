"""The same with the sum written out: a ring, in which each rank talks to its two neighbours.

    mpiexec -n 2 python examples/04_ring.py

Different from 03: `add_up` instead of one call. The vector is cut into a chunk a rank. First the
chunks travel around and collect terms, until each is complete on one rank; then the complete ones
travel around once more. A rank sends less than two vectors, however many ranks there are.
Grown up, with a drawing: src/phalanx/scratch/schemes/ring.py.
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


def add_up(vector):
    rank, size = comm.rank, comm.size
    chunks = np.array_split(vector, size)  # views: what is written there is in the vector
    term = np.zeros_like(chunks[0])  # the first chunk is the longest
    for turn in range(size - 1):
        sent, summed = chunks[rank - turn], chunks[rank - turn - 1]
        pass_on(sent, term[: len(summed)])
        summed += term[: len(summed)]
    for turn in range(size - 1):
        pass_on(chunks[(rank + 1 - turn) % size], chunks[rank - turn])


def pass_on(sent, received):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(sent, dest=right, recvbuf=received, source=left)


order = np.random.default_rng(1)
for _ in range(EPOCHS):
    for batch in order.permutation(num_train).reshape(-1, BATCH):
        mine = np.array_split(batch, comm.size)[comm.rank]
        backward(images[mine], labels[mine], BATCH)
        add_up(gradient)
        weights -= RATE * gradient

if comm.rank == 0:
    _, probabilities = forward(images[num_train:])
    right = (probabilities.argmax(axis=1) == labels[num_train:]).mean()
    print(f"{right:.1%} of digits never seen are read right; sum of weights {weights.sum():.6f}")
