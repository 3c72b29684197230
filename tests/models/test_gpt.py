"""The transformer: what a token may look at, its sizes, and that it learns."""

import pytest
import torch
from torch import nn

from phalanx.data.datasets.catalog import TEXT_SHAPE
from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions, completed, stage_layers

SMALL = DataShape(inputs=(10,), num_classes=13)


def gpt(shape: DataShape = SMALL, dtype: torch.dtype = torch.float64, **sizes: int) -> nn.Module:
    options = ModelOptions(**{"width": 24, "layers": 2, "heads": 3, **sizes})
    return build_model("gpt", seed=3, dtype=dtype, options=options, shape=shape)


def tokens(n: int, shape: DataShape = SMALL) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, shape.num_classes, (n, *shape.inputs), generator=generator)


def test_a_later_token_changes_no_earlier_logits() -> None:
    model, text = gpt(), tokens(2)
    logits = model(text)
    assert logits.shape == (2, 10, 13)
    for position in range(10):
        changed = text.clone()
        changed[:, position] = (changed[:, position] + 1) % 13
        others = model(changed)
        assert torch.equal(others[:, :position], logits[:, :position])
        assert not torch.isclose(others[:, position], logits[:, position]).all(-1).any()
        reached = (others - logits).abs().amax((0, 2))
        assert (reached[position:] > 0).all(), "all that follows looks at it"


def test_a_shorter_text_has_the_same_logits() -> None:
    model, text = gpt(), tokens(2)
    torch.testing.assert_close(model(text[:, :4]), model(text)[:, :4], rtol=0, atol=1e-12)


def test_samples_do_not_look_at_each_other() -> None:
    model, text = gpt(), tokens(5)
    parts = torch.cat([model(text[:1]), model(text[1:])])
    torch.testing.assert_close(model(text), parts, rtol=0, atol=1e-12)


def test_where_a_token_stands_matters() -> None:
    model = gpt()
    same = torch.full((1, 10), 4)
    logits = model(same)
    assert not torch.isclose(logits[:, :-1], logits[:, 1:]).all(-1).any()


@pytest.mark.parametrize(("width", "layers"), [(128, 4), (24, 1), (48, 3)])
def test_sizes(width: int, layers: int) -> None:
    """Per block 12 width² of the six layers, 9 width of their biases, 4 width of two norms."""
    vocabulary, context = TEXT_SHAPE.num_classes, TEXT_SHAPE.inputs[0]
    expected = (
        (vocabulary + context) * width
        + layers * (12 * width**2 + 9 * width + 4 * width)
        + 2 * width
        + vocabulary * width
    )
    model = gpt(TEXT_SHAPE, width=width, layers=layers, heads=2)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_the_default_sizes() -> None:
    model = build_model("gpt", seed=0, shape=TEXT_SHAPE)
    assert sum(p.numel() for p in model.parameters()) == 826_368


def test_the_chain_can_be_cut_between_any_layers() -> None:
    model, text = gpt(), tokens(2)
    cuts = stage_layers("gpt", completed("gpt", ModelOptions(layers=2)))
    assert list(cuts) == [name for name, _ in model.named_children()]
    layers = list(model.children())
    for cut in range(1, len(cuts)):
        halves = nn.Sequential(*layers[:cut]), nn.Sequential(*layers[cut:])
        assert torch.equal(halves[1](halves[0](text)), model(text))


def test_the_first_loss_is_that_of_guessing() -> None:
    model, text = gpt(TEXT_SHAPE, width=128, heads=4), tokens(8, TEXT_SHAPE)
    loss = nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten())
    assert loss.item() == pytest.approx(torch.tensor(97.0).log().item(), abs=0.3)


def test_it_learns_one_batch_by_heart() -> None:
    model, text = gpt(dtype=torch.float32), tokens(8)
    inputs, targets = text[:, :-1], text[:, 1:]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # The first character tells nothing of the second where two samples begin alike.
    assert loss.item() < 0.2
