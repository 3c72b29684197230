"""A network learns to read digits, in one process and with gradients written by hand.

    python examples/01_alone.py

All that follows is measured by this: 02 to 05 split the same work over ranks, and must end with
the same numbers. Grown up: src/phalanx/scratch/schemes/single_process.py.
"""

import numpy as np
from sklearn.datasets import load_digits

EPOCHS, BATCH, RATE = 20, 50, 0.3

images, labels = load_digits(return_X_y=True)  # 1797 images of 8 × 8 pixels
images /= 16
num_train = 1500

# All weights in one vector, which the matrices of the two layers are views of.
weights = np.random.default_rng(0).normal(0, 0.1, 64 * 32 + 32 * 10)
gradient = np.zeros_like(weights)


def layers(vector):
    """The vector as the matrices of both layers."""
    return vector[: 64 * 32].reshape(64, 32), vector[64 * 32 :].reshape(32, 10)


def forward(x):
    """What the network makes of images: hidden values, and probabilities of the ten digits."""
    first, second = layers(weights)
    hidden = np.maximum(x @ first, 0)
    outputs = hidden @ second
    e = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return hidden, e / e.sum(axis=1, keepdims=True)


def backward(x, y, batch_size):
    """Fill `gradient`: of the mean loss over a batch of `batch_size`, of which this is a part."""
    hidden, error = forward(x)
    error[np.arange(len(y)), y] -= 1
    error /= batch_size
    by_first, by_second = layers(gradient)
    by_second[:] = hidden.T @ error
    by_first[:] = x.T @ (error @ layers(weights)[1].T * (hidden > 0))


order = np.random.default_rng(1)
for _ in range(EPOCHS):
    for batch in order.permutation(num_train).reshape(-1, BATCH):
        backward(images[batch], labels[batch], BATCH)
        weights -= RATE * gradient

_, probabilities = forward(images[num_train:])
right = (probabilities.argmax(axis=1) == labels[num_train:]).mean()
print(f"{right:.1%} of digits never seen are read right; sum of weights {weights.sum():.6f}")
