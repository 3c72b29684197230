"""An emulated accelerator: memory that the host cannot read, streams that lag, many devices.

`install(name)` builds it once, and makes it PyTorch's accelerator of this process, as `torch.NAME`
and device "NAME". What it holds against a program is in runtime.h; it is set by the environment:

    EMULATED_DEVICES=2        devices of a process
    EMULATED_LAG_US=300       that an operator waits first, half of it to all; four times for a
                              copy from the host
    EMULATED_SEED=0           of these waits
    EMULATED_QUARANTINE=256   frees before freed memory is handed out again
    EMULATED_MEMORY_MB=4096   of a device
    EMULATED_COPY_MB_PER_S=0  rate of copies between it and the host; 0: at once
    EMULATED_EXCLUSIVE=       a folder: of the processes that name it, one has a device
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import backend_registration, cpp_extension

from phalanx.jobs.detect import detect

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / "build" / "emulated"
SOURCES = tuple(sorted(HERE.glob("*.cpp")))
MIXED = {"mixed": ("cpu", "vexa", "vexa", "vexb"), "mixed_last": ("vexb", "vexa", "vexa", "cpu")}
FLAGS = ("-O1", "-std=c++20", "-fPIC", "-fvisibility=hidden")


def can_be_built() -> bool:
    return shutil.which("g++") is not None and shutil.which("gcc") is not None


def build() -> Path:
    """Compile the device unless it is there. Cost: half a minute.

    Processes that need it at the same time wait for the first.
    Returns: the shared library, by the hash of its sources and the version of PyTorch.
    """
    texts = [path.read_bytes() for path in (*SOURCES, *sorted(HERE.glob("*.h")))]
    texts.append(f"{FLAGS} {torch.__version__} {sys.version}".encode())
    library = CACHE / f"{hashlib.sha256(b''.join(texts)).hexdigest()[:16]}.so"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library)
    return library


def _compile(library: Path) -> None:
    """Compile all files as one: to read PyTorch's headers takes longer than what comes after."""
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    *first, last = SOURCES
    files = [word for source in first for word in ("-include", source)]
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        made = Path(folder) / "made.so"
        words = ["g++", "-shared", *FLAGS, *includes, *files, last, *libraries]
        subprocess.run([*words, "-lc10", "-ltorch_cpu", "-o", made], check=True)
        made.rename(library)


def build_aware_mpi() -> Path:
    """Return a library that, preloaded, makes any MPI one that takes the device's addresses."""
    library = CACHE / "aware_mpi.so"
    CACHE.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}")
    subprocess.run(["gcc", "-shared", "-fPIC", HERE / "aware_mpi.c", "-o", made], check=True)
    return made.rename(library)


def use(name: str) -> torch.device:
    """Return a device of this process: "cpu", "cuda", an emulated one under any other name, or, for
    "mixed" and "mixed_last", one of several kinds by the number of the rank."""
    if name in MIXED:
        launched = detect(os.environ)
        assert launched is not None
        name = MIXED[name][launched.rank % len(MIXED[name])]
    if name not in ("cpu", "cuda"):
        install(name)
    return torch.device(name)


def install_from_environment() -> None:
    """Install the device that EMULATED_NAME names, as PyTorch loads plug-ins: by an entry point."""
    install(os.environ["EMULATED_NAME"])


def install(name: str) -> ModuleType:
    """Make the emulated accelerator this process's, under a vendor's name. Return `torch.NAME`."""
    library = build()
    backend_registration.rename_privateuse1_backend(name)
    torch.ops.load_library(library)
    runtime = ctypes.CDLL(str(library), mode=os.RTLD_GLOBAL)
    module = device_module(name, runtime.emulated_num_devices())
    torch._register_device_module(name, module)
    backend_registration.generate_methods_for_privateuse1_backend()
    return module


def device_module(name: str, count: int) -> ModuleType:
    """Return what PyTorch and programs call `torch.NAME`: no more than they must have."""
    made = ModuleType(f"torch.{name}")
    module: Any = made
    accelerator = torch.accelerator

    def generator_of(device: Any = None) -> torch.Generator:
        index = torch.device(name if device is None else device).index
        generators: list[torch.Generator] = module.default_generators
        return generators[accelerator.current_device_index() if index is None else index]

    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: count
    module.current_device = accelerator.current_device_index
    module.set_device = accelerator.set_device_index
    module.synchronize = accelerator.synchronize
    module.Stream, module.Event = torch.Stream, torch.Event
    module.current_stream = accelerator.current_stream
    module.stream = lambda stream: nullcontext() if stream is None else stream
    module.default_generators = [torch.ops.emulated.default_generator(i) for i in range(count)]
    module.get_rng_state = lambda device=None: generator_of(device).get_state()
    module.set_rng_state = lambda state, device=None: generator_of(device).set_state(state)
    module.manual_seed = lambda seed: generator_of().manual_seed(seed)
    module.manual_seed_all = lambda seed: [g.manual_seed(seed) for g in module.default_generators]
    module._is_in_bad_fork = lambda: False
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return made
