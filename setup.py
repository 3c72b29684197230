"""The C kernels, where a compiler is there; all else is in pyproject.toml."""

from setuptools import Extension, setup

FOLDER = "src/phalanx/comm/csrc"
SOURCES = (
    *("module", "module_parts", "module_coding", "node", "waiting", "segments"),
    *("all_reduce", "moves", "parts", "reduce", "finite", "fused", "coding"),
)
ROWS = "src/phalanx/data/packed/csrc"
HEADERS = ("kernels", "module", "node", "wide")

setup(
    ext_modules=[
        Extension(
            "phalanx.comm._kernels",
            [f"{FOLDER}/{name}.c" for name in SOURCES],
            depends=[f"{FOLDER}/{name}.h" for name in HEADERS],
            # No contraction: the same bits from every width of vectors. No errno of roots: it
            # would keep them from being vectors.
            extra_compile_args=[
                *("-O3", "-std=gnu11", "-fvisibility=hidden"),
                *("-ffp-contract=off", "-fno-math-errno"),
            ],
            py_limited_api=True,
            optional=True,  # without a compiler the array operations serve
        ),
        Extension(
            "phalanx.data.packed._rows",
            [f"{ROWS}/{name}.c" for name in ("module", "samples", "rows", "crc")],
            depends=[f"{ROWS}/{name}.h" for name in ("samples", "rows", "crc")],
            extra_compile_args=["-O3", "-std=gnu11", "-fvisibility=hidden"],
            py_limited_api=True,
            optional=True,  # without a compiler rows are read one by one
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
