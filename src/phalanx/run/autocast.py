"""Forward passes of a program's model in a smaller type."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


class Autocast:
    """Calls of a model under `torch.autocast`, also in evaluations. What it returns in that type
    is float32 again, so that losses are computed in it."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._dtype, self._device = dtype, next(model.parameters()).device.type
        self._open: list[torch.autocast] = []
        self._hooks = [
            model.register_forward_pre_hook(self._enter, prepend=True),
            model.register_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, *_: Any) -> None:
        context = torch.autocast(self._device, dtype=self._dtype)
        context.__enter__()
        self._open.append(context)

    def _leave(self, _module: nn.Module, _inputs: Any, outputs: Any) -> Any:
        self._open.pop().__exit__(None, None, None)
        return tree_map(self._widen, outputs)

    def _widen(self, value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.dtype == self._dtype else value
