"""The C kernels, where a compiler is there; all else is in pyproject.toml."""

from setuptools import Extension, setup

FOLDER = "src/phalanx/comm/csrc"

setup(
    ext_modules=[
        Extension(
            "phalanx.comm._kernels",
            [f"{FOLDER}/module.c", f"{FOLDER}/node.c", f"{FOLDER}/reduce.c"],
            depends=[f"{FOLDER}/kernels.h"],
            # No contraction: the same bits from every width of vectors.
            extra_compile_args=["-O3", "-std=gnu11", "-ffp-contract=off", "-fvisibility=hidden"],
            py_limited_api=True,
            optional=True,  # without a compiler the array operations serve
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
