"""Teach a small GPT to write like Python's manual, letter by letter."""

import argparse
from collections.abc import Sequence
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Letters(Dataset[tuple[Tensor, Tensor]]):
    """Sections of a text: letters (context,), and those that follow them."""

    def __init__(self, text: str, alphabet: str, context: int) -> None:
        number_of = {letter: number for number, letter in enumerate(alphabet)}
        self.letters = torch.tensor([number_of[letter] for letter in text])
        self.context = context

    def __len__(self) -> int:
        return (len(self.letters) - 1) // self.context

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        section = self.letters[number * self.context : (number + 1) * self.context + 1]
        return section[:-1], section[1:]


class Block(nn.Module):
    """Attention to the letters before, then a layer on each letter by itself."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.heads, self.dropout = heads, dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.merge(mixed), self.dropout, self.training)
        return x + self.layer(self.norm2(x))


class GPT(nn.Module):
    """Transformer that predicts the next letter from those before it."""

    def __init__(self, letters: int, context: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, args.width)
        self.place = nn.Embedding(context, args.width)
        blocks = [Block(args.width, args.heads, args.dropout) for _ in range(args.layers)]
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(args.width))
        self.head = nn.Linear(args.width, letters, bias=False)

    def forward(self, letters: Tensor) -> Tensor:
        return self.head(self.blocks(self.letter(letters) + self.place.weight[: letters.shape[1]]))


@torch.no_grad()
def test(model: nn.Module, sections: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean loss of sections that were not trained with."""
    model.eval()
    letters, following = sections
    return F.cross_entropy(model(letters).flatten(0, 1), following.flatten())


def train(args: argparse.Namespace) -> nn.Module:
    """Return the trained network."""
    torch.manual_seed(args.seed)
    text = "".join(topics[name] for name in sorted(topics))
    alphabet, length = "".join(sorted(set(text))), args.samples * args.context + 1
    train_set = Letters(text[:length], alphabet, args.context)
    test_set = Letters(text[-64 * args.context - 1 :], alphabet, args.context)
    test_sections = next(iter(DataLoader(test_set, len(test_set))))
    model = GPT(len(alphabet), args.context, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(train_set, args.batch_size, shuffle=True)
    for epoch in range(args.epochs):
        model.train()
        for letters, following in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(letters).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {test(model, test_sections):.3f}")
    return model


def main(words: Sequence[str] | None = None) -> nn.Module:
    """Train by the options in `words`; None: those of the command line."""
    parser = argparse.ArgumentParser(description="character-level GPT")
    parser.add_argument("--samples", type=int, default=960, help="sections of the text")
    parser.add_argument("--context", type=int, default=64, help="letters in a section")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    return train(parser.parse_args(words))


if __name__ == "__main__":
    main()
