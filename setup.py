"""The C kernels, where a compiler is there; all else is in pyproject.toml.

PHALANX_REQUIRE_KERNELS=1 makes a build without them fail: `make wheel` sets it.
"""

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

IS_OPTIONAL = os.environ.get("PHALANX_REQUIRE_KERNELS") != "1"
WARNING = """
phalanx: THE C KERNELS WERE NOT BUILT, for want of a C compiler: {missing}.
phalanx: Everything works without them, and collectives and reading are slower.
phalanx: Install a compiler, then: pip install --force-reinstall --no-deps --no-cache-dir phalanx
"""

FOLDER = "src/phalanx/comm/csrc"
SOURCES = (
    *("module", "module_shm", "module_tensor", "module_grad_buffer"),
    *("shm", "shm_wait", "shm_segments", "shm_direct", "shm_all_reduce"),
    *("data_movement", "grad_buffer"),
    *("reduce", "finite", "fused", "coding"),
)
ROWS = "src/phalanx/data/packed/csrc"
HEADERS = ("kernels", "module", "shm", "wide")
LOADER = "src/phalanx/comm/compiled.py"
INTERFACE = re.findall(r"^INTERFACE = (\w+)$", Path(LOADER).read_text(), re.M)
MACROS = [("INTERFACE", *INTERFACE)]


def missing_kernels(build: build_ext) -> list[str]:
    """Return the extensions that were not built."""
    names = [extension.name for extension in build.extensions]
    return [name for name in names if not Path(build.get_ext_fullpath(name)).is_file()]


class BuildKernels(build_ext):
    """Says plainly what was not built."""

    def run(self) -> None:
        super().run()
        missing = missing_kernels(self)
        if missing:
            print(WARNING.format(missing=", ".join(missing)), file=sys.stderr, flush=True)


class Wheel(bdist_wheel):
    """One without kernels is named for what it is: a wheel of Python alone."""

    def get_tag(self) -> tuple[str, str, str]:
        build = self.get_finalized_command("build_ext")
        has_run = self.distribution.have_run.get("build_ext")
        if not has_run or len(missing_kernels(build)) < len(build.extensions):
            return super().get_tag()
        self.root_is_pure = True
        return "py3", "none", "any"


setup(
    ext_modules=[
        Extension(
            "phalanx.comm._kernels",
            [f"{FOLDER}/{name}.c" for name in SOURCES],
            depends=[LOADER, *(f"{FOLDER}/{name}.h" for name in HEADERS)],
            define_macros=MACROS,
            # No contraction: the same bits from every width of vectors. No errno of roots: it
            # would keep them from being vectors.
            extra_compile_args=[
                *("-O3", "-g0", "-std=gnu11", "-fvisibility=hidden"),
                *("-ffp-contract=off", "-fno-math-errno"),
            ],
            py_limited_api=True,
            optional=IS_OPTIONAL,  # without a compiler the array operations serve
        ),
        Extension(
            "phalanx.data.packed._rows",
            [f"{ROWS}/{name}.c" for name in ("module", "rows", "crc")],
            depends=[LOADER, *(f"{ROWS}/{name}.h" for name in ("rows", "crc"))],
            define_macros=MACROS,
            extra_compile_args=["-O3", "-g0", "-std=gnu11", "-fvisibility=hidden"],
            py_limited_api=True,
            optional=IS_OPTIONAL,  # without a compiler rows are read one by one
        ),
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
