"""Engines of PyTorch and Transformers on backend mpi: the fragments of their page, on two ranks."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from tests.conftest import Ranks

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="not installed: transformers"
    ),
]


def make_model(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=64,
    )
    LlamaForCausalLM(config).to(torch.float64).save_pretrained(folder)


def test_fragments_equal_one_process(tmp_path: Path, ranks: Ranks) -> None:
    fragments = BLOCK.findall((ROOT / "docs" / "torch_engines.md").read_text())
    assert len(fragments) == 7
    make_model(tmp_path / "model")
    programs = Path(__file__).parent / "programs"
    before, after = ((programs / f"{name}_doors.py").read_text() for name in ("before", "after"))
    seeded = [
        re.sub(r"(?m)^network =", "torch.manual_seed(0)\nnetwork =", each) for each in fragments
    ]
    program = tmp_path / "doors.py"
    program.write_text("\n".join((before, *seeded, after)))
    shown = ranks.torchrun(2, program, tmp_path / "model", timeout_s=120)
    assert len(re.findall(r"rank \d of 2: all as one process", shown)) == 2, shown
