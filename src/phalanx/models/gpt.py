"""A small GPT: a decoder-only transformer with learned positions, normalised first.

Source: Radford et al. 2019, "Language models are unsupervised multitask learners".
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.models.options import DataShape
from phalanx.models.splits import SplitMessages, SplitTraffic


class GPT(nn.Sequential):
    """tokens (N, T) int64 → logits (N, T, vocabulary); T at most the context."""

    def __init__(self, *, width: int, layers: int, heads: int, shape: DataShape) -> None:
        blocks = {f"block{i}": Block(width, heads) for i in range(1, layers + 1)}
        super().__init__(
            OrderedDict[str, nn.Module](
                embedding=Embedding(shape.num_classes, shape.inputs[0], width),
                **blocks,
                norm=nn.LayerNorm(width),
                head=nn.Linear(width, shape.num_classes, bias=False),
            )
        )
        self.shape, self.width = shape, width
        self._blocks = list(blocks)

    def parallelize_plan(self, *, sequence_parallel: bool = False) -> dict[str, Any]:
        """Return the styles in which tensor parallelism splits the modules, by name."""
        from phalanx.models import gpt_tensor  # imports DTensor: seconds

        styles = gpt_tensor.sequence_styles if sequence_parallel else gpt_tensor.gpt_styles
        return styles(self._blocks)

    def split_traffic(self, *, sequence_parallel: bool) -> SplitTraffic:
        """Return the messages of `parallelize_plan`."""
        if not sequence_parallel:
            summed = dict.fromkeys(self._blocks, SplitMessages(all_reduces=4))
            return SplitTraffic(width=self.width, messages=summed)
        ends = dict.fromkeys(("embedding", "head"), SplitMessages(gathers=1))
        blocks = dict.fromkeys(self._blocks, SplitMessages(pairs=4, norms=2))
        messages = {**ends, **blocks, "norm": SplitMessages(norms=1)}
        return SplitTraffic(width=self.width, messages=messages)


class Embedding(nn.Module):
    """tokens (N, T) → (N, T, width): what the token is plus where it stands."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.token(tokens) + self.position(positions)
        return embedded


class Block(nn.Module):
    """(N, T, width) → the same: attention, then two layers on each token by itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class Attention(nn.Module):
    """Causal self-attention. The number of heads follows from the width of the queries, so that a
    part of the heads is the same module with narrower layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        attended = F.scaled_dot_product_attention(
            self._heads(self.query(x)),
            self._heads(self.key(x)),
            self._heads(self.value(x)),
            is_causal=True,
        )
        output: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return output

    def _heads(self, x: Tensor) -> Tensor:
        """(N, T, heads · head width) → (N, heads, T, head width)."""
        heads: Tensor = x.unflatten(2, (-1, self.head_width)).transpose(1, 2)
        return heads


class FeedForward(nn.Module):
    """(N, T, width) → the same, by way of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.contract(F.gelu(self.expand(x)))
        return output
