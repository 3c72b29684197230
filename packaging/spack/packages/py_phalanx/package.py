from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyPhalanx(PythonPackage):
    """Train PyTorch models over MPI: backend "mpi" of torch.distributed, strategies of parallelism
    whose results do not depend on the number of ranks, and records of every step."""

    homepage = "https://URL-of-this-repository"
    pypi = "phalanx/phalanx-0.1.0.tar.gz"
    git = "https://URL-of-this-repository"

    license("Apache-2.0", checked_by="Phalanx developers")

    version("0.1.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    variant("data", default=False, description="Packs Parquet, HDF5 and images")

    depends_on("c", type="build")
    depends_on("py-setuptools@77:", type="build")

    with default_args(type=("build", "run")):
        depends_on("python@3.11:")
        depends_on("py-cyclopts@5:")
        depends_on("py-mpi4py@4:")
        depends_on("py-msgspec@0.19:")
        depends_on("py-numpy@1.26:")
        depends_on("py-pyyaml@6:")
        depends_on("py-rich@13:")
        depends_on("py-safetensors@0.5:")
        # With or without ~mpi: Phalanx brings a backend of its own.
        depends_on("py-torch@2.11:")

        with when("+data"):
            depends_on("py-h5py@3.10:")
            depends_on("py-pillow@10:")
            depends_on("py-pyarrow@15:")

    # The MPI is the one that py-mpi4py was built with; its launcher has to be that of the same MPI.
    depends_on("mpi", type="run")

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        env.set("PHALANX_REQUIRE_KERNELS", "1")

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def kernels_are_there(self):
        python("-c", "import phalanx.comm._kernels, phalanx.data.packed._rows")
