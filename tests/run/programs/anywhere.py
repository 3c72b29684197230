"""Programs under strategies that they do not name: parameters, or what they are told.

Words: a folder for the results; cases, each a program, a slash and a strategy.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from tests.run.programs import ports, truth
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import phalanx

SAMPLES, BATCH, STEPS = 37, 12, 12  # the last global batch has 1 sample


class Translator(nn.Module):
    """An encoder and a decoder that looks at what it has made; one table of words for both, and for
    the outputs."""

    parallelize_plan: ClassVar = {
        "encoder.*.up": "column", "encoder.*.down": "row",
        "decoder.*.up": "column", "decoder.*.down": "row",
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(13, 16)
        self.encoder = nn.ModuleList([Layer(16) for _ in range(2)])
        self.decoder = nn.ModuleList([Layer(16) for _ in range(2)])
        self.head = nn.Linear(16, 13, bias=False)
        self.head.weight = self.words.weight

    def forward(self, texts: Tensor) -> Tensor:
        source, target = texts.chunk(2, dim=1)
        seen, hidden = self.words(source), self.words(target)
        for layer in self.encoder:
            seen = layer(seen, seen)
        for layer in self.decoder:
            hidden = layer(hidden, seen)
        logits: Tensor = self.head(hidden)
        return logits


class Layer(nn.Module):
    """Attention to a sequence, and two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, hidden: Tensor, seen: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(self.norm(hidden), seen, seen)
        hidden = hidden + self.mix(mixed)
        outputs: Tensor = hidden + self.down(F.gelu(self.up(hidden)))
        return outputs


def translator() -> nn.Module:
    texts = torch.randint(13, (SAMPLES, 10))
    return train(Translator(), (texts, texts[:, :5].flip(1)), over_tokens)


class UNet(nn.Module):
    """Down, across and up again, with what was seen on the way down."""

    parallelize_plan: ClassVar = {"mixing.0": "column", "mixing.2": "row"}

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 2, stride=2)
        self.mixing = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8))
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.first(images).relu()
        coarse = self.down(fine).relu()
        coarse = coarse + self.mixing(coarse.movedim(1, -1)).movedim(-1, 1)
        classes: Tensor = self.last(torch.cat([fine, self.up(coarse)], dim=1))
        return classes


def unet() -> nn.Module:
    images = torch.randn(SAMPLES, 1, 8, 8)
    return train(UNet(), (images, (images[:, 0] > 0).long()), F.cross_entropy)


def over_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(
    model: nn.Module, data: tuple[Tensor, Tensor], loss: Callable[[Tensor, Tensor], Tensor]
) -> nn.Module:
    optimizer = AdamW(model.parameters(), lr=0.01)
    run = phalanx.start(model, optimizer, data, batch_size=BATCH, epochs=9, steps=STEPS)
    for batch in run:
        run.step(batch, loss)
    run.evaluate(lambda model, batch: loss(model(batch[0]), batch[1]), data)
    return model


OWN: dict[str, Callable[[], nn.Module]] = {"translator": translator, "unet": unet}
STRATEGIES: dict[str, dict[str, Any]] = {
    "none": {},
    "zero 2": {"strategy": "zero", "strategy_options": {"zero_stage": 2}},
    "zero 3": {"strategy": "zero", "strategy_options": {"zero_stage": 3}},
    "tensor": {"strategy": "tensor"},
    "pipeline": {"strategy": "pipeline"},
    "server": {"strategy": "server"},
    "dp=2,pp=2": {"strategy": "mesh", "strategy_options": {"mesh": "dp=2,pp=2"}},
}


@contextlib.contextmanager
def starting(options: dict[str, Any]) -> Iterator[list[phalanx.ProgramRun]]:
    """Have `phalanx.start` take other options, and gather the runs that it returns."""
    runs, start = list[phalanx.ProgramRun](), phalanx.start

    def start_so(*words: Any, **given: Any) -> phalanx.ProgramRun:
        runs.append(start(*words, **{**given, **options}))
        return runs[-1]

    phalanx.start = start_so
    try:
        yield runs
    finally:
        phalanx.start = start


def found(case: str) -> dict[str, Tensor] | str:
    """Return the parameters of a case, or why it is refused."""
    program, strategy = case.split("/")
    torch.manual_seed(1)
    with starting(STRATEGIES[strategy]) as runs, contextlib.redirect_stdout(io.StringIO()):
        try:
            if program in ports.CASES:
                ports.trained(program)
            else:
                torch.set_default_dtype(torch.float64)
                (OWN | truth.CASES)[program]()
        except phalanx.UserError as error:
            return str(error)
        finally:
            torch.set_default_dtype(torch.float32)
    return {name: value.clone() for name, value in runs[-1].state_dict().items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    results = {case: found(case) for case in sys.argv[2:]}
    torch.save(results, folder / f"{os.environ['RANK']}.pt")
