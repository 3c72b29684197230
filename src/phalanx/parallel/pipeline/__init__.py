"""Pipeline parallelism: a model cut into stages, through which micro-batches go one behind another.

What is decided here (`cutting`, `layout`, `orders`, `timeline`, `bubble`, `traffic`) is pure and
needs no PyTorch; `engine` runs it, by the schedules of torch.distributed.pipelining.
"""
