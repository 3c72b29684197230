"""The ports of examples/ports, some steps each in float64; each rank saves what came of them."""

import contextlib
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parents[3] / "examples" / "ports"
# Four steps an epoch: the last has fewer samples, and no number of ranks divides them.
IN_EPOCHS = "--samples 59 --batch-size 15 --epochs 2"
CASES = {
    "mnist": IN_EPOCHS,
    "gpt": f"{IN_EPOCHS} --layers 2 --width 32 --context 32",
    "forces": IN_EPOCHS,
    "gan": "--batch-size 50 --steps 12 --width 32",
    "pinn": "--batch-size 50 --steps 12",
}


def trained(name: str) -> tuple[dict[str, Any], str]:
    """Return a program's parameters and what it prints."""
    sys.path.insert(0, str(FOLDER))
    torch.set_default_dtype(torch.float64)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            model = importlib.import_module(name).main(CASES[name].split())
        return model.state_dict(), output.getvalue()
    finally:
        torch.set_default_dtype(torch.float32)
        sys.path.remove(str(FOLDER))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    results = {name: trained(name) for name in sys.argv[2:] or CASES}
    torch.save(results, folder / f"{os.environ['RANK']}.pt")
