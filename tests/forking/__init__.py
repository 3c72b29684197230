"""Python programs that start in milliseconds: forks of one process that has imported PyTorch."""
