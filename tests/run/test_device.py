"""Models, data and new tensors on devices, as far as that can be seen without a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

import phalanx

torch.manual_seed(1)
DATA = torch.randn(20, 4), torch.randint(3, (20,))


def train(**options: Any) -> list[Tensor]:
    model = nn.Linear(4, 3, device="cpu")
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    optimizer = Adam(model.parameters(), lr=0.1)
    run = phalanx.start(model, optimizer, DATA, batch_size=8, **options)
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
    score = run.evaluate(lambda m, batch: F.cross_entropy(m(batch[0]), batch[1]), DATA)
    run.close()
    return [*model.state_dict().values(), torch.tensor(score, device="cpu")]


def test_new_tensors_of_the_program_may_be_made_elsewhere(tmp_path: Path) -> None:
    """As after `torch.set_default_device("cuda")`: samples, sums and checkpoints stay."""
    truth = train(epochs=2)
    for number, options in enumerate(({"micro_batches": 4}, {"clip_norm": 9.0}, {})):
        with torch.device("meta"):
            kept = {
                "checkpoint_dir": tmp_path / str(number),
                "checkpoints": phalanx.Checkpoints(every_steps=1),
            }
            train(epochs=1, **kept, **options)
            found = train(epochs=2, resume=True, **kept, **options)
        for one, other in zip(found, truth, strict=True):
            torch.testing.assert_close(one, other)


def test_a_model_that_is_elsewhere_is_refused_by_name() -> None:
    model = nn.Linear(4, 3, device="meta")
    optimizer = Adam(model.parameters())
    text = 'the model\'s weight is on meta, .*: give device="cuda", which moves model and data'
    with pytest.raises(phalanx.UserError, match=text):
        phalanx.start(model, optimizer, DATA, batch_size=8, strategy="local")
