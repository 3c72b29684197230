"""The embedded digits: the same for ever, fair to every class, honest about what they validate."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phalanx.data.datasets.array_cache import Arrays
from phalanx.data.datasets.digits import (
    TRAIN_SEED,
    VALIDATION_SEED,
    affine_maps,
    choose_sources,
    distort,
    make_digits,
    read_originals,
    split_originals,
)

# The same on one thread and on two, with scalar, AVX2 and AVX-512 arithmetic.
SHA256 = Arrays(
    "0a418f62f194543a3c0837bd1b5d48fb9e9b77ae219c02c7db7c76d57c945a1f",
    "d2df389a9900fed94444b5e55f3a0e811d2dfbc903939a51d92a49a8a2341ad8",
    "eff326f91f4d9791b3da0c2af341d1d5376480736632a0e63563c62891f69144",
    "a0d709ce9f4d7f3023ba87dc667f92e24e4e53b561cfdc93ca8c3179f908b428",
)


@pytest.fixture(scope="module")
def digits() -> Arrays:
    return make_digits()


@pytest.mark.parametrize("part", Arrays._fields)
def test_the_bytes_never_change(digits: Arrays, part: str) -> None:
    """When this fails on purpose, `catalog.digits_file` needs another number."""
    array = getattr(digits, part)
    assert array.dtype == np.uint8
    assert hashlib.sha256(array.tobytes()).hexdigest() == getattr(SHA256, part)


def test_there_are_as_many_as_in_mnist(digits: Arrays) -> None:
    assert digits.train_inputs.shape == (60_000, 28, 28)
    assert digits.train_targets.shape == (60_000,)
    assert digits.validation_inputs.shape == (10_000, 28, 28)
    assert digits.validation_targets.shape == (10_000,)


def test_classes_are_as_frequent_as_among_the_originals(digits: Arrays) -> None:
    _, labels = read_originals()
    expected = np.bincount(labels) / len(labels)
    for labels in (digits.train_targets, digits.validation_targets):
        np.testing.assert_allclose(np.bincount(labels) / len(labels), expected, atol=0.003)
    first = np.bincount(digits.train_targets[:1000]) / 1000  # what --train-samples 1000 keeps
    np.testing.assert_allclose(first, expected, atol=0.03)


def test_no_two_originals_are_equal() -> None:
    """So that originals apart by index are apart by content."""
    images, _ = read_originals()
    assert len(np.unique(images.reshape(len(images), -1), axis=0)) == len(images)


labels_of_originals = hnp.arrays(np.int64, st.integers(0, 400), elements=st.integers(0, 9))


@given(labels_of_originals)
def test_an_original_serves_either_training_or_validation(labels: np.ndarray) -> None:
    train, validation = split_originals(labels)
    assert sorted([*train, *validation]) == list(range(len(labels)))
    counts = np.bincount(labels, minlength=10)
    assert np.bincount(labels[validation], minlength=10).tolist() == (counts // 5).tolist()


@given(labels_of_originals.filter(lambda labels: (np.bincount(labels) >= 5).any()))
def test_no_validation_image_comes_from_an_original_of_training(labels: np.ndarray) -> None:
    train, validation = split_originals(labels)
    train_sources = choose_sources(train, 2000, TRAIN_SEED)
    validation_sources = choose_sources(validation, 500, VALIDATION_SEED)
    assert not set(train_sources) & set(validation_sources)


@given(
    num_originals=st.integers(1, 200), num_samples=st.integers(0, 500), seed=st.integers(0, 1000)
)
def test_originals_serve_equally_often(num_originals: int, num_samples: int, seed: int) -> None:
    sources = choose_sources(np.arange(num_originals), num_samples, seed)
    uses = np.bincount(sources, minlength=num_originals)
    assert uses.sum() == num_samples
    assert uses.max() - uses.min() <= 1


def test_maps_stay_small_and_keep_the_handedness() -> None:
    maps = affine_maps(5000, seed=4)
    assert maps.shape == (5000, 2, 3)
    scale = np.sqrt(np.linalg.det(maps[:, :, :2])) * 20 / 8
    assert 0.85 < scale.min() < 0.9 < 1.1 < scale.max() < 1.17


def test_the_number_of_threads_changes_nothing() -> None:
    images, _ = read_originals()
    alone = distort(images[:1500], seed=7)
    torch.set_num_threads(3)
    together = distort(images[:1500], seed=7)
    torch.set_num_threads(1)
    np.testing.assert_array_equal(together, alone)


def test_digits_lie_in_the_middle_with_an_empty_edge(digits: Arrays) -> None:
    ink = digits.train_inputs.mean(axis=0) / 255
    assert ink[[0, -1]].max() < 0.01
    assert ink[:, [0, -1]].max() < 0.01
    rows, columns = ink.sum(axis=1), ink.sum(axis=0)
    for profile in (rows, columns):
        assert abs((profile * np.arange(28)).sum() / profile.sum() - 13.5) < 0.5


def test_a_small_network_learns_them_though_not_at_once(digits: Arrays) -> None:
    """Hard enough to tell trainings apart: an epoch leaves errors, and does well."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(784, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    images, labels = torch.from_numpy(digits.train_inputs) / 255, digits.train_targets
    for batch in torch.randperm(60_000).split(128):
        optimizer.zero_grad()
        output = network(images[batch])
        target = torch.from_numpy(labels)[batch].long()
        torch.nn.functional.cross_entropy(output, target).backward()
        optimizer.step()
    with torch.no_grad():
        output = network(torch.from_numpy(digits.validation_inputs) / 255)
    correct = output.argmax(dim=1).numpy() == digits.validation_targets
    assert 0.90 < correct.mean() < 0.98
