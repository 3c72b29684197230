"""Ranks that find each other: their launcher's own faults."""

from pathlib import Path

from phalanx.doctor.examine import Finding
from phalanx.doctor.nodes.meeting import Meeting
from phalanx.jobs.installation import MpiInstallation


def test_a_launcher_that_starts_no_rank_is_tried_twice(tmp_path: Path) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(
        f"#!/bin/sh\necho started >> {tmp_path}/starts\n"
        'echo "PMIx server\'s listener thread failed to start. We cannot continue."; exit 213\n'
    )
    mpiexec.chmod(0o755)
    mpi = MpiInstallation(vendor="other", version="1", mpiexec=mpiexec, source="path")
    with Meeting(["localhost"], mpi, None) as meeting:
        found = meeting.wait()
    assert isinstance(found, Finding)
    assert found.detail.startswith("MPI 1 does not connect the nodes: PMIx server's listener")
    assert (tmp_path / "starts").read_text() == "started\n" * 2
