"""The multi-layer perceptron of the scaling studies: 784-256-128-10, 235,146 parameters."""

from collections import OrderedDict
from typing import ClassVar

from torch import nn

from phalanx.models.options import MNIST_SHAPE, DataShape
from phalanx.models.splits import SplitMessages, SplitTraffic


class MLP(nn.Sequential):
    """images (N, …) → logits (N, classes); two hidden layers, the second half as wide."""

    # The output layer has ten columns: it is not worth a message.
    parallelize_plan: ClassVar = {"hidden1": "column", "hidden2": "row"}

    def __init__(self, *, width: int = 256, shape: DataShape = MNIST_SHAPE) -> None:
        num_inputs = 1
        for size in shape.inputs:
            num_inputs *= size
        super().__init__(
            OrderedDict[str, nn.Module](
                flatten=nn.Flatten(),
                hidden1=nn.Linear(num_inputs, width),
                relu1=nn.ReLU(),
                hidden2=nn.Linear(width, max(1, width // 2)),
                relu2=nn.ReLU(),
                output=nn.Linear(max(1, width // 2), shape.num_classes),
            )
        )
        self.shape = shape

    def split_traffic(self, *, sequence_parallel: bool) -> SplitTraffic:  # noqa: ARG002
        """Return the messages of `parallelize_plan`."""
        width = self.get_submodule("hidden2").out_features
        assert isinstance(width, int), "of a linear layer"
        return SplitTraffic(width=width, messages={"hidden2": SplitMessages(all_reduces=1)})
