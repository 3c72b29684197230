"""Text generation with a trained GPT."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: Tensor,
    num_new: int,
    *,
    context: int,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`prompt` (n,) int64 and the `num_new` tokens that `model` goes on with, one after the other.

    model: tokens (1, T) → logits (1, T, vocabulary), T at most `context`; of a longer text it is
    given the end. temperature: by which the logits are divided; 0 takes the likeliest token.
    Cost: one forward pass over the context for each new token; nothing is kept between them.
    Raises: ValueError when the prompt is empty or the temperature negative.
    """
    if not len(prompt):
        raise ValueError("a prompt has at least one token: the model only goes on from something")
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, not {temperature}")
    was_training = model.training
    model.eval()
    tokens = prompt
    for _ in range(num_new):
        logits = model(tokens[None, -context:])[0, -1]
        if temperature == 0:
            token = logits.argmax()[None]
        else:
            chances = (logits / temperature).softmax(0)
            token = torch.multinomial(chances, 1, generator=generator)
        tokens = torch.cat([tokens, token])
    model.train(was_training)
    return tokens
