"""The multi-layer perceptron of the scaling studies: 784-256-128-10, 235,146 parameters."""

from collections import OrderedDict

from torch import nn

from phalanx.models.options import MNIST_SHAPE, DataShape


class MLP(nn.Sequential):
    """images (N, …) → logits (N, classes); two hidden layers, the second half as wide."""

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
        self.shape = shape  # what it reads and tells
