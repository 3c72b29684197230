"""An LSTM of 128 units that reads an image row by row; 82,186 parameters for 28 × 28 pixels."""

from torch import Tensor, nn

from phalanx.models.options import MNIST_SHAPE, DataShape


class RNN(nn.Module):
    """images (N, 1, H, W) → logits (N, classes)."""

    def __init__(self, *, shape: DataShape = MNIST_SHAPE) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size=shape.inputs[2], hidden_size=128, batch_first=True)
        self.output = nn.Linear(128, shape.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        states, _ = self.lstm(images.squeeze(1))
        logits: Tensor = self.output(states[:, -1])
        return logits
