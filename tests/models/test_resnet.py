"""The residual network: its sizes, its chain of layers, and that no sample looks at another."""

import pytest
import torch
from torch import nn

from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions, completed, stage_layers

CIFAR_SHAPE = DataShape(inputs=(3, 32, 32))
SHAPES = [DataShape(), CIFAR_SHAPE]


def resnet(
    shape: DataShape = CIFAR_SHAPE, dtype: torch.dtype = torch.float64, **sizes: int
) -> nn.Module:
    return build_model("resnet", seed=3, dtype=dtype, options=ModelOptions(**sizes), shape=shape)


def parameters_by_formula(channels: int, width: int, layers: int) -> int:
    """Convolutions without bias, two values a channel of each normalisation, the last layer."""
    total = 9 * channels * width + 2 * width
    before = width
    for stage in (width, 2 * width, 4 * width):
        first = 9 * before * stage + 9 * stage**2 + (before * stage if before != stage else 0)
        others = (layers - 1) * 18 * stage**2
        total += first + others + layers * 4 * stage
        before = stage
    return total + 4 * width * 10 + 10


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("width", "layers"), [(16, 1), (8, 3), (5, 2)])
def test_sizes(shape: DataShape, width: int, layers: int) -> None:
    model = resnet(shape, width=width, layers=layers)
    count = sum(p.numel() for p in model.parameters())
    assert count == parameters_by_formula(shape.inputs[0], width, layers)
    images = torch.rand(2, *shape.inputs, dtype=torch.float64)
    assert model(images).shape == (2, 10)
    children = dict(model.named_children())
    for stage, shrunk in ((1, 1), (2, 2), (3, 4)):
        for block in range(1, layers + 1):
            images_of_stage = torch.rand(
                1, *_into(stage, block, width), *_size(shape, stage, block), dtype=torch.float64
            )
            out = children[f"stage{stage}_block{block}"](images_of_stage)
            assert out.shape[1:] == (
                width * shrunk, shape.inputs[1] // shrunk, shape.inputs[2] // shrunk
            )  # fmt: skip


def _into(stage: int, block: int, width: int) -> tuple[int]:
    return (width * 2 ** (stage - 1 if block > 1 or stage == 1 else stage - 2),)


def _size(shape: DataShape, stage: int, block: int) -> tuple[int, int]:
    shrunk = 2 ** (stage - 1 if block > 1 or stage == 1 else stage - 2)
    return shape.inputs[1] // shrunk, shape.inputs[2] // shrunk


def test_the_default_is_small() -> None:
    assert sum(p.numel() for p in build_model("resnet", seed=0).parameters()) == 77_562


def test_a_sample_is_treated_alike_in_any_batch() -> None:
    """What batch normalisation would break: the mathematics must not depend on the split."""
    model = resnet()
    images = torch.rand(7, 3, 32, 32, dtype=torch.float64)
    whole = model(images)
    parts = torch.cat([model(images[:1]), model(images[1:5]), model(images[5:])])
    torch.testing.assert_close(whole, parts, rtol=0, atol=1e-12)
    assert not list(model.buffers())


def test_the_chain_can_be_cut_between_any_layers() -> None:
    options = completed("resnet", ModelOptions(layers=2))
    model = resnet(layers=2)
    names = [name for name, _ in model.named_children()]
    cuts = stage_layers("resnet", options)
    with_parameters = [n for n, child in model.named_children() if list(child.parameters())]
    assert list(cuts) == with_parameters
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    whole = model(images)
    for cut in cuts[1:]:
        layers, first = list(model.children()), names.index(cut)
        halves = nn.Sequential(*layers[:first]), nn.Sequential(*layers[first:])
        assert torch.equal(halves[1](halves[0](images)), whole)


def test_it_learns_one_batch_by_heart() -> None:
    model = resnet(DataShape(inputs=(1, 12, 12)), torch.float32)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(16, 1, 12, 12, generator=generator)
    labels = torch.randint(0, 10, (16,), generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1.5
    assert losses[-1] < 0.1
