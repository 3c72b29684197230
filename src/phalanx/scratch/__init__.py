"""A network and five ways to train it on many ranks, written out in NumPy: to be read.

Start with `modules.py`, then `network.py`, then `schemes/` from `single_process.py` on. The
guide is docs/scratch.md. No PyTorch is imported anywhere: a rank starts in a fraction of a second.
"""
