"""Pipeline parallelism: a model cut into stages, through which micro-batches go one behind another.

What is decided here (`cutting`, `layout`, `orders`, `timeline`) is pure and
needs no PyTorch; `engine` runs it, whether the bits must be those of one process or not.
"""
