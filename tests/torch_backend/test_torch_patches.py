"""The patches of PyTorch: in one file, and of names that the installed version has."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.nn.parallel  # noqa: F401

import phalanx
from phalanx.torch_backend.torch_patches import GROUP_HELPER, PATCHES, Patch

SOURCE = Path(phalanx.__file__).parent


@pytest.mark.parametrize("patch", [GROUP_HELPER, *PATCHES], ids=lambda patch: patch.places[0])
def test_what_is_patched_is_in_this_pytorch(patch: Patch) -> None:
    assert callable(patch.original())
    assert "versions" in (patch.replacement.__doc__ or "")


SETTINGS = {"fill_uninitialized_memory"}
"""Attributes that PyTorch documents as what a program sets."""


def torch_names(tree: ast.Module) -> set[str]:
    """Names that a file imports from PyTorch."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found = [alias for alias in node.names if alias.name.split(".")[0] == "torch"]
            names |= {alias.asname or "torch" for alias in found}
    return names


def assigned_attributes(tree: ast.Module) -> Iterator[str]:
    """Yield the name before the first dot of every attribute that is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            patched = [each for each in targets if getattr(each, "attr", None) not in SETTINGS]
            for target in (each for top in patched for each in ast.walk(top)):
                inside = target
                while isinstance(inside, ast.Attribute):
                    inside = inside.value
                if isinstance(target, ast.Attribute) and isinstance(inside, ast.Name):
                    yield inside.id


def test_no_other_file_assigns_to_attributes_of_pytorch() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.name != "torch_patches.py":
            tree = ast.parse(path.read_text())
            wrong = torch_names(tree) & set(assigned_attributes(tree))
            assert not wrong, f"{path} patches {wrong}"
