"""Cost of collecting the records of many ranks through the output of a launcher.

    python benchmarks/relay.py                 # as 1,024 ranks on one machine, a minute
    python benchmarks/relay.py 64              # as 64

One process sends what the processes beside all ranks would, per rank a file with the steps of two
seconds, in as many pieces; another reads it from a pipe, as `phalanx launch` does.

Reported: the reader's CPU seconds per record, the steps per second and rank that keep it busy all
the time, and the bytes of a record in the pipe and in its file. They go to
runs/benchmarks/relay.json.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from harness import save
from phalanx.jobs import relay
from phalanx.jobs.collector import Collector
from phalanx.jobs.relay import Order, Sender
from phalanx.records.events import StepEvent

STEPS_PER_S, RUN_S = 45, 2.0


def lines(rank: int, steps: range) -> bytes:
    """Return the records of some steps, with times that no two ranks have in common."""
    found = []
    for step in steps:
        noise = 1 + (rank * 7919 + step * 104_729) % 9973 / 9973
        event = StepEvent(
            at_s=0.0222 * step * noise,
            epoch=0,
            step=step,
            samples=32,
            loss_sum=70.1 / noise,
            data_s=1.3e-4 * noise,
            forward_s=7.1e-3 * noise,
            backward_s=1.2e-2 * noise,
            communication_s=9.3e-4 / noise,
            optimizer_s=1.7e-3 * noise,
        )
        found.append(msgspec.json.encode(event) + b"\n")
    return b"".join(found)


def steps_of_a_piece(num_ranks: int) -> int:
    """Return the steps of a rank between two pieces; until 40ce3b53 these were always those of a
    quarter of a second."""
    pause_s = relay.pause_s(1, num_ranks) if hasattr(relay, "pause_s") else 0.25
    return int(STEPS_PER_S * pause_s)


def send(folder: Path, key: str, num_ranks: int) -> None:
    """Send as the processes beside the ranks do, through this process's output."""
    num_bytes, write = 0, relay._write

    def counted(data: bytes) -> None:
        nonlocal num_bytes
        num_bytes += len(data)
        write(data)

    relay._write = counted
    order = Order(str(folder / "home"), ".not there", {}, key)
    senders = []
    for rank in range(num_ranks):
        (folder / f"{rank}").mkdir()
        senders.append(Sender(order, rank, folder / f"{rank}"))
    num_steps, piece = int(STEPS_PER_S * RUN_S), steps_of_a_piece(num_ranks)
    for first in range(0, num_steps, piece):
        for rank, sender in enumerate(senders):
            with (folder / f"{rank}" / f"rank-{rank}.jsonl").open("ab") as file:
                file.write(lines(rank, range(first, min(first + piece, num_steps))))
            sender.send_new()
    (folder / "sent").write_text(str(num_bytes))


def main() -> None:
    """Send and read the records, and report the cost of a record."""
    if len(sys.argv) > 2:
        send(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
        return
    num_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    with tempfile.TemporaryDirectory(prefix="relay-") as name:
        folder = Path(name)
        home = folder / "home"
        home.mkdir()
        collector = Collector(home)
        words = [sys.executable, __file__, name, collector.key, str(num_ranks)]
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        sender = subprocess.Popen(words, stdout=collector.output)
        collector.release()
        sender.wait()
        collector.wait()
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        num_bytes = int((folder / "sent").read_text())
        num_records = num_ranks * int(STEPS_PER_S * RUN_S)
        files = [home / f"rank-{rank}.jsonl" for rank in range(num_ranks)]
        found = sum(path.read_bytes().count(b"\n") for path in files)
        assert found == num_records, f"{found} of {num_records} records came home"
        of_files = sum(path.stat().st_size for path in files)
    record_s = cpu_s / num_records
    print(
        f"{num_ranks} ranks, {num_records:,} records in {seconds:.1f} s: {record_s * 1e6:.1f} µs "
        f"of a processor each, busy at {1 / record_s / num_ranks:.0f} steps/s a rank; "
        f"{num_bytes / num_records:.0f} bytes in the pipe, {of_files / num_records:.0f} in the file"
    )
    save(
        "relay",
        ranks=num_ranks,
        records=num_records,
        seconds=seconds,
        processor_s=cpu_s,
        pipe_bytes=num_bytes,
        file_bytes=of_files,
    )


if __name__ == "__main__":
    main()
