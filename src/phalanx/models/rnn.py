"""An LSTM of 128 units that reads an image as 28 rows of 28 pixels; 82,186 parameters."""

from torch import Tensor, nn


class RNN(nn.Module):
    """images (N, 1, 28, 28) → logits (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size=28, hidden_size=128, batch_first=True)
        self.output = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        states, _ = self.lstm(images.squeeze(1))
        logits: Tensor = self.output(states[:, -1])
        return logits
