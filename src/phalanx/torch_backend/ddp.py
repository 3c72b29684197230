"""Shared memory for the gradient buckets of DistributedDataParallel.

DDP packs gradients into a few long-lived tensors, its buckets, and has the process group reduce
them in every step. Here the storage of a bucket is moved, once, to memory that the peers on the
node can access; from then on it is reduced in place, without copies.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
import weakref

import torch
from torch import Tensor, UntypedStorage
from torch.autograd import graph
from torch.nn.parallel import DistributedDataParallel

from phalanx.comm.settings import Settings
from phalanx.comm.shm import ShmGroup
from phalanx.jobs.open_files import file_limit, open_files

SMALLEST_BYTES = 16 * 1024  # a copy of a smaller one takes less time than the lookup
SHARED_MEMORY_FOLDER = "/dev/shm"  # PyTorch makes shared memory here
MEGABYTE = 2**20
MOST_BUCKETS = 128  # limit per model: each takes one of about a thousand file descriptors

_BACKWARD = graph._engine_run_backward.__code__


class DDPBuckets:
    """The gradient buckets of the DDP modules on one process group."""

    def __init__(self, shm: ShmGroup | None, settings: Settings) -> None:
        """shm: shared memory of all ranks of the group; None where they share none."""
        self._shm, self._settings = shm, settings
        self.runs_inline = False
        """Reduce buckets on the calling thread: the backward passes keep all cores busy, so that
        another thread would only take time from them."""
        self._modules: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._unshareable: set[int] = set()  # addresses of buckets that could not be moved

    def add_module(self, module: DistributedDataParallel) -> None:
        """Share the buckets of `module` from now on."""
        self._modules.add(module)
        if self._shm is not None:
            self.runs_inline = self._settings.cores <= self._shm.size * torch.get_num_threads()

    def cap_mb(self, module: torch.nn.Module) -> int | None:
        """Return the bucket size for `module`, the same on every rank; None: no shared memory, use
        PyTorch's default."""
        if self._shm is None:
            return None
        num_bytes = sum(parameter.nbytes for parameter in module.parameters())
        return bucket_cap_mb(self._shm.size, self._settings.cache_bytes, num_bytes)

    def share_if_bucket(self, tensor: Tensor) -> bool:
        """Return whether `tensor` is a DDP bucket; move it to shared memory the first time."""
        if self._shm is None or not self._modules or not self._is_bucket(tensor):
            return False
        storage = tensor.untyped_storage()
        if not storage.is_shared() and storage.data_ptr() not in self._unshareable:
            address = storage.data_ptr()
            if not self._share(storage, self._shm):
                self._unshareable.add(address)
        return True

    def _is_bucket(self, tensor: Tensor) -> bool:
        """Return whether `tensor` is a DDP bucket: a full storage, reduced by the backward pass
        itself and not by Python code.

        It matters: a NumPy array on the storage of any other tensor would be left with freed
        memory.
        """
        if tensor.dim() != 1 or not tensor.is_cpu:
            return False  # the backward pass of a GPU has a thread without Python code
        # 0: here, 1: share_if_bucket, 2: allreduce, 3: who called it
        if sys._getframe(3).f_code is not _BACKWARD:
            return False
        num_bytes = tensor.nbytes
        whole = num_bytes == tensor.untyped_storage().nbytes()
        return whole and num_bytes >= SMALLEST_BYTES and tensor.is_contiguous()

    def _share(self, storage: UntypedStorage, shm: ShmGroup) -> bool:
        """Move `storage` to shared memory; return whether that was possible."""
        if not _has_room(shm.size * storage.nbytes()) or not _has_descriptors():
            return False
        try:
            descriptor, num_bytes = storage._share_fd_cpu_()
        except (AttributeError, RuntimeError):
            return False  # another version of PyTorch: buckets are copied
        return shm.export(descriptor, storage.data_ptr(), num_bytes, owner=storage)


def _has_room(num_bytes: int) -> bool:
    """Return whether PyTorch can allocate so much shared memory and leave as much free."""
    try:
        status = os.statvfs(SHARED_MEMORY_FOLDER)
    except OSError:
        return False  # PyTorch could not make it either: gradients are copied
    free_bytes = status.f_bavail * status.f_frsize
    if 2 * num_bytes <= free_bytes:
        return True
    warnings.warn(
        f"DDP's buckets of all ranks take {num_bytes / MEGABYTE:.0f} MB, and "
        f"{SHARED_MEMORY_FOLDER} has {free_bytes / MEGABYTE:.0f} MB free: gradients are copied "
        "instead; enlarge it with --shm-size in a container",
        stacklevel=2,
    )
    return False


def _has_descriptors() -> bool:
    """Return whether half of this process's file descriptors are free.

    Each bucket keeps one of them, and the program opens files and connections of its own.
    """
    used, most = open_files(), file_limit()
    if used is None or 2 * used < most:
        return True
    warnings.warn(
        f"{'all' if used >= most else 'half'} of the {most} file descriptors of this process are "
        "in use: DDP's further buckets are copied instead of shared, which is slower; raise the "
        "limit with ulimit -n",
        stacklevel=2,
    )
    return False


def bucket_cap_mb(ranks: int, cache_bytes: int, model_bytes: int) -> int:
    """Return the bucket size with which the buckets of all ranks fill half of the last-level cache,
    from which the peers read them. Larger for models that would have too many buckets."""
    in_cache = min(25, cache_bytes // 2 // ranks // MEGABYTE)
    return max(1, in_cache, math.ceil(model_bytes / MOST_BUCKETS / MEGABYTE))
