#!/usr/bin/env bash
# Installs what FOLDER holds into an empty environment, as a user would, and uses it.
#
#   packaging/try_dist.sh PYTHON MPI [FOLDER]      such as python3.12 mpich dist
#
# INSTALL, "pip install" if it is not set, installs: "uv pip install" is faster.
# KIND=sdist takes the source archive, which is then compiled here, and not the wheel.
set -euo pipefail
python=$1 mpi=$2 folder=${3:-dist}
case ${KIND:-wheel} in
  wheel) files=("$folder"/phalanx-*manylinux*"_$(uname -m)".whl) ;;
  sdist) files=("$folder"/phalanx-*.tar.gz) ;;
esac
file=$(realpath -e "${files[0]}")
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT

"$python" -m venv "$room/env"
PATH=$room/env/bin:$PATH VIRTUAL_ENV=$room/env
export PATH VIRTUAL_ENV
unset PYTHONPATH
PHALANX_REQUIRE_KERNELS=1 ${INSTALL:-python -m pip install --quiet} "phalanx[$mpi,study] @ file://$file"
cd "$room"
python -c 'import sys, phalanx; print(sys.version.split()[0], "phalanx", phalanx.__version__, phalanx.__file__)'
python -c 'import phalanx.comm._kernels, phalanx.data.packed._rows'
phalanx doctor
phalanx train --strategy mpi --ranks 2 --epochs 1 --train-samples 1024 --validation-samples 256
echo "$(basename "$file") works with $python and $mpi"
