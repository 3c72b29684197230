"""Every patch of PyTorch, with the versions that it is for and why.

`patch_at_import` runs in every `import torch`, and `patch_for_groups` before the first process
group is made. PyTorch is imported inside functions only, since `import torch` loads this file.
Versions are those that the tests run on: 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

C10D = "torch.distributed.distributed_c10d"
_CPP_LOG_ERRORS = 2
_WHILE_MADE = {"_MPI_AVAILABLE": True, "_TORCHCOMM_AVAILABLE": False}
"""Flags of `distributed_c10d` while a group of backend mpi is being made."""


class Patch(NamedTuple):
    """A function of PyTorch that another one replaces, which gets it as its first argument."""

    replacement: Callable[..., Any]
    """Its docstring gives versions and reason."""
    places: tuple[str, ...]
    """Every "module:name" of the function."""

    def original(self) -> Any:
        """Return what is there now. Raises: AttributeError: not in this version of PyTorch."""
        owner, name = _resolve(self.places[0])
        return getattr(owner, name)

    def apply(self) -> None:
        """Replace the function; once, however often this is called."""
        original = self.original()
        if getattr(original, "patched_by_phalanx", False):
            return

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return self.replacement(original, *args, **kwargs)

        patched.patched_by_phalanx = True  # type: ignore[attr-defined]
        for owner, name in map(_resolve, self.places):
            setattr(owner, name, patched)


def _resolve(place: str) -> tuple[Any, str]:
    """Return the module or class that "module:class.name" names, and the name."""
    module, _, path = place.partition(":")
    *classes, name = path.split(".")
    return functools.reduce(getattr, classes, importlib.import_module(module)), name


def _c10d() -> Any:
    return sys.modules[C10D]


def version() -> tuple[int, int]:
    """Return the version of PyTorch, such as (2, 13)."""
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def _mpi_class() -> type[Any]:
    from phalanx.torch_backend.process_group import ProcessGroupMPI

    return ProcessGroupMPI


# -- in every `import torch` -----------------------------------------------------------------------


def patch_at_import(*, is_rank: bool) -> None:
    """Make backend "mpi" known to `torch.distributed`; nothing here is expected to fail.

    is_rank: an MPI launcher started this process, and there is an MPI library.
    """
    c10d = _c10d()
    # PyTorch 2.15 hooks its flight recorder to every group that does not record itself, and
    # cannot do so with one that is written in Python.
    recording: set[str] = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add("mpi")
    c10d.ProcessGroupMPI = ProcessGroupMPIFactory
    GROUP_HELPER.apply()
    if is_rank:
        c10d._MPI_AVAILABLE = True  # all versions: programs choose their backend by it


class ProcessGroupMPIFactory:
    """Stands in for `c10d.ProcessGroupMPI`, which only a PyTorch built with MPI has.

    Up to 2.13 PyTorch creates groups by it; later versions call what `register_backend` was given.
    """

    @staticmethod
    def create(ranks: list[int]) -> Any:
        """Create the process group of `ranks`, which hold this rank; an empty list: all ranks."""
        from phalanx.torch_backend.group_creation import create

        return create(ranks)


def names_mpi(backend: object) -> bool:
    """Return whether a backend string such as "mpi" or "cpu:gloo,cuda:mpi" has backend mpi."""
    return "mpi" in {part.rpartition(":")[2] for part in str(backend).lower().split(",")}


def new_process_group_helper(helper: Any, /, *args: Any, **kwargs: Any) -> Any:
    """All versions: makes groups only if PyTorch was built with MPI, and passes neither name nor
    timeout nor store of the group on. 2.13: asks torchcomms for them where that is switched on."""
    backend = kwargs["backend"] if "backend" in kwargs else args[3]
    if not names_mpi(backend):
        group_creation = sys.modules.get("phalanx.torch_backend.group_creation")
        if group_creation is None:
            return helper(*args, **kwargs)
        # The group is beside one of backend mpi, or on its store.
        group_creation.open_default_store()
        with group_creation.gloo_interface(kwargs["store"] if "store" in kwargs else args[4]):
            return helper(*args, **kwargs)
    from phalanx.torch_backend.group_creation import make_group

    flags = vars(_c10d())
    before = {name: flags.get(name) for name in _WHILE_MADE}
    flags.update(_WHILE_MADE)
    try:
        return make_group(helper, *args, **kwargs)
    finally:
        flags.update(before)


GROUP_HELPER = Patch(new_process_group_helper, (f"{C10D}:_new_process_group_helper",))


@contextlib.contextmanager
def hide_cpp_warnings() -> Iterator[None]:
    """Hide warnings of PyTorch's C++ code meanwhile, unless TORCH_CPP_LOG_LEVEL says otherwise.

    All versions: a `TCPStore` looks up the names of addresses for its log, and warns where they
    have none. There is no function that sets the level after PyTorch has been loaded.
    """
    import torch

    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # another version or build of PyTorch
        yield
        return
    before = level.value
    if "TORCH_CPP_LOG_LEVEL" not in os.environ:
        level.value = _CPP_LOG_ERRORS
    try:
        yield
    finally:
        level.value = before


# -- before the first group of backend mpi ---------------------------------------------------------


def patch_for_groups() -> None:
    """Apply the patches that only programs with groups of backend mpi need."""
    for patch in PATCHES:
        patch.apply()
    if hasattr(_c10d(), "_use_torchcomms_enabled"):
        TORCHCOMMS.apply()
    exclude_from_dynamo("phalanx.torch_backend")


def monitored_barrier(
    original: Any, group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
) -> Any:
    """All versions: refuses every backend but gloo."""
    asked = group or _c10d()._get_default_group()
    if isinstance(asked, _mpi_class()):
        return asked.monitored_barrier(timeout, wait_all_ranks)
    return original(group, timeout, wait_all_ranks)


def set_pg_timeout(original: Any, timeout: timedelta, group: Any = None) -> None:
    """All versions: private, but called by training frameworks. Up to 2.13 it warns and leaves all
    backends but gloo and nccl as they are, in 2.15 it warns that it is deprecated."""
    asked = group or _c10d()._get_default_group()
    if isinstance(asked, _mpi_class()):
        asked.set_timeout(timeout)
    else:
        original(timeout, group)


def split_group(
    original: Any, parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """All versions: up to 2.13 asks for a GPU, in 2.15 for a backend that splits communicators."""
    parent = parent_pg or _c10d()._get_default_group()
    if type(parent) is _mpi_class() and split_ranks and not args:
        return _split(parent, split_ranks, **kwargs)
    return original(parent_pg, split_ranks, *args, **kwargs)


def _split(
    parent: Any,
    split_ranks: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    pg_options: Any = None,  # noqa: ARG001  backend mpi has none beside the timeout
    group_desc: str | None = None,
    backend: str | None = None,
) -> Any:
    """Return the new group that holds this rank of `parent`; if none does, as PyTorch does then.

    Raises: ValueError for a group that is empty or has a rank twice, and for another backend.
    """
    import torch.distributed as dist

    wrong = [list(ranks) for ranks in split_ranks if len(set(ranks)) < max(1, len(ranks))]
    if wrong:
        raise ValueError(f"split_group: {wrong[0]} is empty or has a rank twice")
    # PyTorch lets members make a group by themselves, but not for the name "mpi".
    backends = [f"{device.type}:mpi" for device in parent._device_types]
    asked = backends if backend in (None, "mpi") else str(backend).lower().split(",")
    if not set(asked) <= set(backends):
        raise ValueError(f"split_group: backend {backend}, but the parent has {','.join(backends)}")
    order: dict[str, Any] = {"sort_ranks": False} if version() >= (2, 14) else {}
    for ranks in split_ranks:
        if parent.rank() in ranks:
            return dist.new_group(
                [dist.get_global_rank(parent, rank) for rank in ranks],
                timeout=timeout or parent.options._timeout,
                backend=",".join(asked),
                use_local_synchronization=True,
                group_desc=group_desc,
                **order,
            )
    return dist.GroupMember.NON_GROUP_MEMBER if order else None


def use_torchcomms(original: Any) -> bool:
    """2.13, where `torchcomms` is installed and switched on: takes every backend but "fake", and
    makes the groups beside the default one by splitting that."""
    return original() and not isinstance(_c10d()._world.default_pg, _mpi_class())


def ddp_init(original: Any, ddp: Any, /, *args: Any, **kwargs: Any) -> None:
    """All versions: DDP tells its process group nothing of its gradient buckets."""
    given = inspect.signature(original).bind(ddp, *args, **kwargs).arguments
    buckets = getattr(_ddp_group(given), "buckets", None)
    chosen = {"bucket_cap_mb", "bucket_cap_mb_list"} & given.keys()
    cap_mb = None if buckets is None else buckets.cap_mb(given["module"])
    if cap_mb is not None and not chosen:
        kwargs["bucket_cap_mb"] = cap_mb
    original(ddp, *args, **kwargs)
    if buckets is not None:
        buckets.add_module(ddp)


def _ddp_group(arguments: dict[str, Any]) -> Any:
    """Return the process group of a DDP module with these constructor arguments."""
    mesh = arguments.get("device_mesh")
    if mesh is not None and mesh.ndim == 1:
        return mesh.get_group(mesh_dim=0)
    if arguments.get("process_group") is not None:
        return arguments["process_group"]
    return _c10d()._get_default_group() if _c10d().is_initialized() else None


def future_wait(original: Any, future: Any) -> Any:
    """All versions: a callback of a collective may wait for the future of a later one, which only
    the waiting thread could run."""
    from phalanx.torch_backend.collective_queue import run_until

    run_until(future.done)
    return original(future)


def init_function_event(original: Any, event: Any, /, *args: Any, **kwargs: Any) -> None:
    """All versions: a profiler's event is asynchronous if it ends on another thread, or where C++
    says so, as for the collectives and messages of PyTorch's own backends."""
    original(event, *args, **kwargs)
    event.is_async = event.is_async or event.name.startswith("mpi:")


PATCHES = (
    Patch(monitored_barrier, (f"{C10D}:monitored_barrier", "torch.distributed:monitored_barrier")),
    Patch(set_pg_timeout, (f"{C10D}:_set_pg_timeout",)),
    Patch(split_group, (f"{C10D}:split_group", "torch.distributed:split_group")),
    Patch(ddp_init, ("torch.nn.parallel:DistributedDataParallel.__init__",)),
    Patch(future_wait, ("torch._C:Future.wait",)),
    Patch(init_function_event, ("torch.autograd.profiler_util:FunctionEvent.__init__",)),
)
TORCHCOMMS = Patch(use_torchcomms, (f"{C10D}:_use_torchcomms_enabled",))


def keep_dropped(functional: Any) -> None:
    """Have `torch.nn.functional.dropout`, which modules call by that name, keep all values."""
    functional.dropout = _keep


def _keep(input: Any, *_: object, **__: object) -> Any:  # noqa: A002  the name that PyTorch has
    return input


def exclude_from_dynamo(package: str) -> None:
    """Have Dynamo skip all loaded functions of `package`, and the functions that they call.

    All versions: PyTorch's own backends are C++, which Dynamo never traces. It would trace this one
    from DDP's forward pass into a broadcast, and fail there.
    """
    import torch

    compiler: Any = torch._C._dynamo.eval_frame
    try:
        skip = compiler._FrameAction.SKIP
        strategy = compiler._FrameExecStrategy(skip, skip)
        for name, module in list(sys.modules.items()):
            if f"{name}.".startswith(f"{package}."):
                for code in _codes_of(vars(module).values(), package):
                    compiler.set_code_exec_strategy(code, strategy)
    except AttributeError:
        return  # another version of PyTorch; uncompiled programs still work


def _codes_of(members: Iterable[object], package: str) -> Iterator[CodeType]:
    """Yield the code of the functions among `members`, and of the methods of their classes."""
    for member in list(members):
        if isinstance(member, type):
            if f"{member.__module__}.".startswith(f"{package}."):
                yield from _codes_of(vars(member).values(), package)
        elif isinstance(member, property):
            yield from _codes_of((member.fget, member.fset), package)
        elif isinstance(member, staticmethod | classmethod):
            yield from _codes_of((member.__func__,), package)
        elif isinstance(member, FunctionType):
            yield from _with_inner(member.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
