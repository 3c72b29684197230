"""C extensions that were built of other sources than the Python files are refused in one line."""

import re
import zlib
from pathlib import Path

import pytest

import phalanx
from phalanx.comm import compiled
from phalanx.errors import UserError
from tests.conftest import Programs, Ranks

SOURCES = Path(phalanx.__file__).parent
EXTENSIONS = ("phalanx.comm._kernels", "phalanx.data.packed._rows")
SEEN = re.compile(
    r"""/\*\s\w+\([^*]*\*/                 # arguments of a function, as its comment names them
    |FUNCTION\(\w+\)
    |parse\(a,\sn,\s"\w*"|PyArg_ParseTuple\(args,\s"[^"]*"   # and their types
    |X\(\w+,\s"[^"]*"\)|AddIntConstant\([^)]*\)              # names and numbers
    """,
    re.VERBOSE,
)
NOT_BUILT = pytest.mark.skipif(compiled.import_kernels() is None, reason="no C kernels were built")


def interface() -> int:
    """Return a number of what Python calls and reads in C."""
    files = [*SOURCES.glob("**/csrc/module*.c"), SOURCES / "comm" / "csrc" / "kernels.h"]
    found = [item for path in sorted(files) for item in SEEN.findall(path.read_text())]
    assert len(found) > 100
    return zlib.crc32("\n".join(" ".join(item.split()) for item in found).encode())


def test_a_change_of_the_interface_gets_another_number() -> None:
    """Whatever was built before it is refused then."""
    wanted = interface()
    assert wanted == compiled.INTERFACE, f"comm/compiled.py: INTERFACE = 0x{wanted:08X}"


@NOT_BUILT
@pytest.mark.parametrize("name", EXTENSIONS)
def test_what_was_built_of_other_sources_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiled.import_extension(name) is not None
    assert compiled.kernel_names("DTYPES")[0] == "float32"
    monkeypatch.setattr(compiled, "INTERFACE", 1)
    with pytest.raises(
        UserError, match=r"\.so was built from a different version of Phalanx"
    ) as error:
        compiled.import_extension(name)
    assert str(error.value).endswith("; rebuild it: python setup.py build_ext -i")
    assert compiled.kernel_names("DTYPES") == ()


@NOT_BUILT
@pytest.mark.mpi
def test_ranks_with_other_kernels_end_at_once(ranks: Ranks, programs: Programs) -> None:
    shown = ranks.mpi(2, programs("other_kernels.py"), may_fail=True)
    said = r"phalanx: on rank \d .*_kernels\.\S*so was built .* build_ext -i \(\S+\.py:\d+\)\n"
    assert re.search(said, shown), shown
    assert "Traceback" not in shown
