"""The C kernels, where a compiler is there; all else is in pyproject.toml."""

from setuptools import Extension, setup

FOLDER = "src/phalanx/comm/csrc"
SOURCES = (
    *("module", "module_parts", "node", "waiting", "segments"),
    *("all_reduce", "moves", "parts", "reduce", "fused"),
)
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
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
