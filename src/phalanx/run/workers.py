"""Worker processes that read a program's data, beside MPI; random numbers of a data set belong to
the sample, not to the rank that reads it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import forkserver, parent_process, process, resource_tracker
from typing import Any

from torch.utils.data import DataLoader, Dataset

from phalanx.data.hashing import hash_seed
from phalanx.errors import UserError
from phalanx.run.randomness import generators_kept, seed_generators

MEND = (
    "a fork of a rank shares its connections to peers: leave it out, or set "
    'multiprocessing_context="forkserver"'
)

_PRELOADED = ("torch.utils.data", __name__)
"""Modules that each worker needs: to import PyTorch takes it seconds."""


def check_workers(data: object, loading: Mapping[str, Any], *, num_ranks: int) -> None:
    """Raise UserError for worker processes that would be forks of a rank.

    loading: arguments of PyTorch's `DataLoader`, by which `forkserver` is taken where none is said.
    """
    if num_ranks == 1:
        return
    context = loading.get("multiprocessing_context")
    if loading.get("num_workers") and _start_method(context) == "fork":
        raise UserError(f"loading: multiprocessing_context is fork, and {MEND}")
    if isinstance(data, DataLoader) and data.num_workers:
        context = data.multiprocessing_context
        if context is None or _start_method(context) == "fork":
            raise UserError(
                f"data is a DataLoader whose {data.num_workers} workers fork, and {MEND}"
            )


def in_processes(loading: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a `DataLoader`, whose workers start quickly where there are some,
    and leave no files behind, however this rank ends."""
    options = dict(loading)
    if options.get("num_workers"):
        # A fork of a process in which MPI runs would share its connections.
        options.setdefault("multiprocessing_context", "forkserver")
        options["worker_init_fn"] = partial(end_with_rank, options.get("worker_init_fn"))
        _preload()
        _track_files()
    return options


def end_with_rank(then: Callable[[int], None] | None, worker: int) -> None:
    """Watch the rank, as the first call in a worker, which ends as soon as its rank is gone.
    PyTorch has it end with the process that has forked it, and that one waits for its workers.

    then: first call of the program's own. worker: number of this one.
    """
    threading.Thread(target=_await_end_of_rank, daemon=True).start()
    if then is not None:
        then(worker)


def _await_end_of_rank() -> None:
    rank = parent_process()
    if rank is not None:
        rank.join()
        os._exit(1)


def _preload() -> None:
    """Have workers forked from a process that has imported PyTorch. One that runs, or for which
    the program has chosen modules, stays as it is."""
    server: Any = forkserver._forkserver
    if server._preload_modules == ["__main__"]:
        forkserver.set_forkserver_preload(list(_PRELOADED))


def _track_files() -> None:
    """Have a process remove the workers' semaphores and sockets after the end of this rank and
    its workers, also by SIGKILL.

    It is Python's own tracker of semaphores, in a session of its own: a launcher kills a rank with
    its process group, and Python removes the folder of the sockets only where it ends by itself.
    """
    tracker: Any = resource_tracker._resource_tracker
    this_process: Any = process.current_process()
    config = this_process._config
    if tracker._fd is not None or "tempdir" in config:
        return
    folder = tempfile.mkdtemp(prefix="pymp-")
    read, write = os.pipe()
    words = (
        "import shutil; from multiprocessing.resource_tracker import main; "
        f"main({read}); shutil.rmtree({folder!r}, ignore_errors=True)"
    )
    null = subprocess.DEVNULL
    process_of_tracker = subprocess.Popen(
        [sys.executable, "-c", words],
        pass_fds=[read],
        stdin=null,
        stdout=null,
        stderr=null,
        start_new_session=True,
    )
    os.close(read)
    tracker._fd, tracker._pid = write, process_of_tracker.pid
    process_of_tracker.returncode = 0  # it outlives this process
    config["tempdir"] = folder


def _start_method(context: Any) -> str | None:
    method = getattr(context, "get_start_method", None)
    name: str | None = method() if callable(method) else context
    return name


class SeededDataset(Dataset[Any]):
    """A data set of batches, whose samples are read with generators seeded by (seed, sample): those
    of Python, NumPy and PyTorch. Also in a worker of `DataLoader`, which collates by `as_it_is`.

    Cost: some 40 µs a sample.
    """

    def __init__(
        self, dataset: Dataset[Any], collate: Callable[[list[Any]], Any], seed: int
    ) -> None:
        self._dataset, self._collate, self._seed = dataset, collate, seed

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the samples of a batch, put together."""
        with generators_kept():
            return self._collate(self._samples(indices))

    def _samples(self, indices: Sequence[int]) -> list[Any]:
        whole: Any = getattr(self._dataset, "__getitems__", None)
        if whole is not None:  # the sampler draws for all ranks: a batch is the same on any rank
            seed_generators(hash_seed(self._seed, indices[0]))
            samples: list[Any] = whole(indices)
            return samples
        samples = []
        for index in indices:
            seed_generators(hash_seed(self._seed, index))
            samples.append(self._dataset[index])
        return samples


def as_it_is(batch: Any) -> Any:
    """Return a batch that is put together already."""
    return batch
