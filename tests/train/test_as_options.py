"""Errors of `phalanx.start` in the words of the command line, and users' names as they are."""

import pytest

from phalanx.train.as_options import in_options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("checkpoint_dir=saved holds", "--checkpoint-dir saved holds"),
        ("resume=sweep/lr=0.2,seed=7: no", "--resume sweep/lr=0.2,seed=7: no"),
        ("checkpoint_dir=lr=0.1 cannot", "--checkpoint-dir lr=0.1 cannot"),
        ("checkpoint lr=0.1/epoch-0001 is", "checkpoint lr=0.1/epoch-0001 is"),
        ("checkpoint_dir=a b/my seed=1/x has", "--checkpoint-dir a b/my seed=1/x has"),
        ('strategy="zero", bitwise=True', "--strategy zero, --bitwise"),
        ("or skip it by bad_gradients='skip'", "or skip it by --bad-gradients skip"),
        ("mend it, or raise timeout_s=", "mend it, or raise --timeout-s"),
        ("batch_size=2 is the global batch", "--batch-size 2 is the global batch"),
        ("seed of the program 0 there, 7 here", "--seed 0 there, 7 here"),
        ("create_graph=True is nothing of ours", "create_graph=True is nothing of ours"),
    ],
)
def test_arguments_are_options_and_paths_stay(text: str, expected: str) -> None:
    assert in_options(text) == expected
