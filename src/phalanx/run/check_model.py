"""Checks of a program's model before ranks are joined."""

from __future__ import annotations

from torch import nn

from phalanx.errors import UserError


def check_model(model: object) -> None:
    """Raises: UserError for what no run could train."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model is of type {type(model).__name__}: give a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise UserError(
                f"{name}.weight has sparse gradients (nn.{type(module).__name__}(sparse=True)), "
                "and sums over ranks are dense: leave sparse=True out"
            )
