"""Tokens that follow: the likeliest, or drawn by their chances, from the end of the text."""

import pytest
import torch
from torch import Tensor, nn

from phalanx.models.build import build_model
from phalanx.models.generate import generate
from phalanx.models.options import DataShape, ModelOptions

SHAPE = DataShape(inputs=(6,), num_classes=11)


class Counting(nn.Module):
    """After token t comes t + 1, surely; keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen.append(tokens[0].tolist())
        return 50.0 * nn.functional.one_hot((tokens + 1) % 11, 11)


def test_it_goes_on_from_the_end_and_gives_the_model_no_more_than_the_context() -> None:
    model = Counting()
    text = generate(model, torch.tensor([7, 8]), 5, context=4)
    assert text.tolist() == [7, 8, 9, 10, 0, 1, 2]
    assert model.seen == [[7, 8], [7, 8, 9], [7, 8, 9, 10], [8, 9, 10, 0], [9, 10, 0, 1]]


def test_the_likeliest_token_of_a_gpt() -> None:
    model = build_model("gpt", seed=0, shape=SHAPE, options=ModelOptions(width=8, heads=2))
    text = generate(model, torch.tensor([3]), 5, context=6, temperature=0)
    assert text.shape == (6,)
    # One pass over the whole gives the same, since no token looks at later ones.
    assert model(text[None])[0, :-1].argmax(-1).tolist() == text[1:].tolist()
    assert model.training
    longer = generate(model, text, 20, context=6, temperature=0)
    assert longer.shape == (26,)


def test_tokens_are_drawn_by_their_chances() -> None:
    class Fixed(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            return torch.tensor([0.5, 0.3, 0.2]).log().expand(1, tokens.shape[1], 3)

    def shares(temperature: float) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        text = generate(
            Fixed(), torch.tensor([0]), 2000, context=1, temperature=temperature,
            generator=generator,
        )  # fmt: skip
        return text[1:].bincount(minlength=3) / 2000

    torch.testing.assert_close(shares(1.0), torch.tensor([0.5, 0.3, 0.2]), atol=0.04, rtol=0)
    squared = torch.tensor([0.25, 0.09, 0.04]) / 0.38  # half the temperature squares the chances
    torch.testing.assert_close(shares(0.5), squared, atol=0.04, rtol=0)
    assert torch.equal(shares(1.0), shares(1.0))


@pytest.mark.parametrize(
    ("prompt", "temperature", "message"),
    [([], 1.0, "at least one token"), ([1], -0.5, "must not be negative, not -0.5")],
)
def test_what_cannot_be_gone_on_from(prompt: list[int], temperature: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(
            Counting(),
            torch.tensor(prompt, dtype=torch.int64),
            1,
            context=4,
            temperature=temperature,
        )
