"""The embedded text: characters as numbers, the cut in two, and windows of it."""

import re
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.datasets import language_reference
from phalanx.data.datasets.arrays import num_windows, read_text, windows
from phalanx.data.datasets.catalog import CONTEXT, resolve
from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.datasets.language_reference import (
    ALPHABET,
    UNKNOWN,
    VOCABULARY,
    Reference,
    cut,
    decode,
    encode,
    read_reference,
)
from phalanx.errors import UserError


@given(st.text(ALPHABET))
def test_text_of_the_alphabet_comes_back(text: str) -> None:
    assert decode(encode(text)) == text


@given(st.text())
def test_any_text_becomes_tokens_and_only_unknown_characters_are_lost(text: str) -> None:
    tokens = encode(text)
    assert len(tokens) == len(text)
    assert decode(tokens) == re.sub(r"[^\n -~]", "\N{REPLACEMENT CHARACTER}", text)
    assert encode(decode(tokens)) == tokens


@given(st.lists(st.integers(0, VOCABULARY - 1)))
def test_any_tokens_come_back(tokens: list[int]) -> None:
    assert list(encode(decode(tokens))) == tokens


def test_the_vocabulary_is_fixed() -> None:
    assert (VOCABULARY, UNKNOWN) == (97, 96)
    assert list(encode("\n a~é")) == [0, 1, 66, 95, 96]
    with pytest.raises(ValueError, match="token 97 is not one of the 97"):
        decode([5, 97])


@given(st.binary(max_size=200), st.integers(1, 20))
def test_windows_lie_side_by_side(tokens: bytes, context: int) -> None:
    inputs, targets = windows(tokens, context)
    assert inputs.shape == targets.shape == (num_windows(len(tokens), context), context)
    used = inputs.size
    assert len(tokens) - context <= used + 1 <= max(1, len(tokens)) or used == 0
    assert inputs.tobytes() == np.array(list(tokens[:used]), np.int64).tobytes()
    assert targets.ravel().tolist() == list(tokens[1 : used + 1])


def test_a_repeated_paragraph_is_validated_and_not_trained_on() -> None:
    topics = {f"topic{i}": f"About {i}.\n\nMore of {i}." for i in range(19)}
    topics["with"] = "A rule.\n\n   It goes\n   on.\n\nThe end."
    topics["topic4"] += "\n\nIt goes on.\n\nNot so here."
    training, validation = cut(topics)
    assert validation == topics["topic9"] + "\n\n\n" + topics["with"] + "\n"
    assert "More of 4.\n\nNot so here." in training
    assert "It goes" not in training


def paragraphs(text: str) -> set[str]:
    return {" ".join(part.split()) for part in re.split(r"\n\s*\n", text)}


def test_the_reference_of_this_python() -> None:
    training, validation = read_reference()
    assert not paragraphs(training) & paragraphs(validation)
    known = " ".join(training.split())
    runs = {known[i : i + 64] for i in range(len(known) - 63)}
    asked = " ".join(validation.split())
    repeated = sum(asked[i : i + 64] in runs for i in range(len(asked) - 63))
    assert repeated < 0.02 * len(asked)
    assert len(training) > 350_000
    assert 20_000 < len(validation) < len(training) / 8
    assert encode(training).count(UNKNOWN) < len(training) / 200
    assert "assert" in training[:500]  # the first topic by name


@pytest.mark.skipif(sys.version_info[:3] != (3, 11, 7), reason="the text of another Python")
def test_samples_of_one_version_are_always_the_same() -> None:
    assert "3.11.7, 460,063 characters (SHA-256 b49ccf63aa53e446…)" in resolve("text").reason
    arrays = read_text()
    assert [len(part) for part in arrays] == [6621, 6621, 567, 567]


def test_the_data_set() -> None:
    dataset = load_dataset("text", dtype=torch.float64, train_samples=300, validation_samples=20)
    assert dataset.shape == resolve("text").shape
    assert (dataset.shape.inputs, dataset.shape.num_classes) == ((CONTEXT,), VOCABULARY)
    assert dataset.shape.targets_per_sample == CONTEXT
    for part, samples in (
        (dataset.train_inputs, 300),
        (dataset.train_targets, 300),
        (dataset.validation_inputs, 20),
        (dataset.validation_targets, 20),
    ):
        assert part.shape == (samples, CONTEXT)
        assert part.dtype == torch.int64
        assert part.is_contiguous()
    assert torch.equal(dataset.train_inputs[:, 1:], dataset.train_targets[:, :-1])
    assert torch.equal(dataset.train_inputs[1:, 0], dataset.train_targets[:-1, -1])
    text = decode(dataset.train_inputs.flatten().tolist())
    assert text == re.sub(r"[^\n -~]", "\ufffd", read_reference().training[: len(text)])
    train = num_windows(len(read_reference().training))
    with pytest.raises(UserError, match=f"--train-samples must be 1 to {train} for text, not"):
        load_dataset("text", train_samples=train + 1)


def test_a_python_without_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_reference, "_SOURCE", "pydoc_data.no_such")
    with pytest.raises(UserError, match=r"came without pydoc_data\.no_such.*\n?.*python\.org"):
        resolve("text")
    monkeypatch.setattr(language_reference, "_SOURCE", "no_such_package.topics")
    assert not language_reference.has_reference()


def test_another_text_can_be_read() -> None:
    arrays = read_text(Reference("ab" * 65, "c" * 64))
    assert arrays.train_inputs.shape == (2, 64)
    assert arrays.validation_inputs.shape == (0, 64)
    assert arrays.train_targets[0, :2].tolist() == list(encode("ba"))
