"""Train PyTorch models over MPI on the stock PyTorch wheel."""

__version__ = "0.1.0"
