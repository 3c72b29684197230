"""An epoch that is broken off goes on with exactly the samples that are left, on any number of
ranks: four, then two, then three give what one process gives without a break."""

import json
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from phalanx.checkpoints.find import find_checkpoint
from phalanx.checkpoints.manifest import folder_name, read_manifest
from phalanx.data.sampler import epoch_order, windowed_order
from phalanx.records.events import EpochEvent, NoticeEvent, StepEvent, SummaryEvent
from phalanx.records.files import read_events
from tests.conftest import Ranks
from tests.data.packs import alter, make_pack

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]

SAMPLES, BATCH, STEPS, PERIOD, SEED = 77, 8, 10, 4, 5
BREAKS = (0, PERIOD, 2 * PERIOD, STEPS)
SGD = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.05}
CASES: dict[str, dict[str, Any]] = {
    "mpi": {"strategy": "mpi"},
    "windows": {"strategy": "mpi", "shuffle_shards": 2, "stage": "stage", "stage_mb": 0.01},
    "damaged": {"strategy": "mpi", "damaged": "skip"},
    "gloo": {"strategy": "gloo"},
    "shared": {"strategy": "shared", "reader_kind": "processes", "readers": 1},
    "server": {"strategy": "server"},
    "local": {"strategy": "local", "local_steps": 1, **SGD},
    "zero": {"strategy": "zero", "zero_stage": 3},
}


QUICK = ("mpi", "windows", "damaged", "gloo")
OF_THE_TRUTH = ("shuffle_shards", "damaged", *SGD)
DAMAGED = (13, 46)


def options(pack: Path, **others: Any) -> dict[str, Any]:
    return {
        "data": str(pack), "batch_size": BATCH, "epochs": 1, "seed": SEED, "width": 12, **others
    }  # fmt: skip


def cases(
    names: tuple[str, ...], packs: Path, folder: Path, before: str | None, step: int
) -> dict[str, dict[str, Any]]:
    """Those that write to `folder`, each going on from where it stood in `folder.parent/before`."""
    made = {}
    for name in names:
        chosen = CASES[name]
        others = {"checkpoint_dir": str(folder / name / "saved"), "checkpoint_steps": PERIOD}
        if before is not None:
            saved = folder.parent / before / name / "saved"
            others["resume"] = str(saved / folder_name(0, step * BATCH))
        if "stage" in chosen:
            others["stage"] = str(folder / "stage")
        made[name] = options(packs / name, **(chosen | others))
    return made


def seen(folder: Path, ranks: int, steps: range) -> list[int]:
    """Samples that the ranks were given in these steps, in the order of the ranks."""
    files = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(ranks)]
    return [s for step in steps for file in files for s in file.get(str(step), [])]


@pytest.mark.parametrize(
    "names",
    [QUICK, pytest.param(tuple(n for n in CASES if n not in QUICK), marks=pytest.mark.long)],
    ids=["quick", "others"],
)
def test_an_epoch_goes_on_with_the_samples_that_are_left(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path, names: tuple[str, ...]
) -> None:
    packs = tmp_path / "packs"
    for name in names:
        make_pack(packs / name, samples=SAMPLES)
        for sample in DAMAGED if name == "damaged" else ():
            alter(packs / name, sample)
    alone = {
        name: options(
            packs / name,
            **{key: CASES[name][key] for key in CASES[name] if key in OF_THE_TRUTH},
            strategy="sequential",
            checkpoint_dir=str(tmp_path / "1" / name / "saved"),
        )
        for name in names
    }
    ranks.mpi(1, programs("resuming.py"), str(tmp_path / "1"), json.dumps(alone), timeout_s=400)
    before = None
    for count, step in zip((4, 2, 3), BREAKS, strict=False):
        folder = tmp_path / str(count)
        chosen = cases(names, packs, folder, before, step)
        if count == 3:
            chosen["disagreeing"] = disagreeing(chosen[names[0]], tmp_path)
        text = json.dumps(chosen)
        ranks.mpi(count, programs("resuming.py"), str(folder), text, timeout_s=400)
        before = str(count)
    first = [*range(0, SAMPLES, 10), SAMPLES]
    for name in names:
        order = epoch_order(SAMPLES, SEED, 0).tolist()
        if name == "windows":
            order = windowed_order(first, 2, SEED, 0).tolist()
        if name == "damaged":
            order = [sample for sample in order if sample not in DAMAGED]
        parts = [
            seen(tmp_path / str(count) / name, count, range(start, stop))
            for count, start, stop in zip((4, 2, 3), BREAKS[:-1], BREAKS[1:], strict=True)
        ]
        assert [s for part in parts for s in part] == order, name
        expected = load_file(tmp_path / "1" / name / "saved/epoch-0001/model.safetensors")
        found = load_file(tmp_path / "3" / name / "saved/epoch-0001/model.safetensors")
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.allclose(found[key], tensor, rtol=0, atol=1e-9), (name, key)
    check_records(tmp_path / "3" / names[0])
    check_disagreeing(tmp_path)
    check_checkpoints(tmp_path / "4" / names[0] / "saved")
    if "damaged" in names:
        check_damaged(tmp_path)
    if "windows" in names:
        stages = [path for n in (4, 2, 3) for path in (tmp_path / str(n) / "stage").iterdir()]
        assert not stages, "left behind"


def disagreeing(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Every rank sees a folder of its own: those of ranks 1 and 2 are of an older checkpoint."""
    newer = Path(case["resume"])
    older = folder / "4" / Path(case["checkpoint_dir"]).parent.name / "saved"
    older /= folder_name(0, PERIOD * BATCH)
    for rank, checkpoint in enumerate((newer, older, older)):
        shutil.copytree(checkpoint, folder / f"seen-by-{rank}" / checkpoint.name)
    others = {"resume": str(folder / "seen-by-{rank}"), "checkpoint_dir": None}
    return case | others | {"checkpoint_steps": None}


def check_disagreeing(folder: Path) -> None:
    told = {(folder / "3" / "disagreeing" / f"refused-{rank}").read_text() for rank in range(3)}
    (message,) = told
    checkpoint = folder / "seen-by-0" / folder_name(0, 2 * PERIOD * BATCH)
    older = folder_name(0, PERIOD * BATCH)
    others = f"{socket.gethostname()} (ranks 1, 2): {older}"
    assert f"ranks see different checkpoints (rank 0: {checkpoint}; {others})" in message


def check_records(folder: Path) -> None:
    """Of the last part: what was seen before is told, and is not counted again."""
    events = [e for rank in range(3) for e in read_events(folder / f"rank-{rank}.jsonl")]
    epochs = [event for event in events if isinstance(event, EpochEvent)]
    assert {epoch.first_sample for epoch in epochs} == {2 * PERIOD * BATCH}
    assert sum(epoch.samples for epoch in epochs) == SAMPLES - 2 * PERIOD * BATCH
    assert {event.step for event in events if isinstance(event, StepEvent)} == {8, 9}


def check_damaged(folder: Path) -> None:
    """Those who find one count it, all leave it out, and it is told."""
    left, told = 0, ""
    for count, steps in zip(
        (4, 2, 3), (range(PERIOD), range(PERIOD, 8), range(8, STEPS)), strict=True
    ):
        for rank in range(count):
            events = list(read_events(folder / str(count) / "damaged" / f"rank-{rank}.jsonl"))
            counted = [e.samples for e in events if isinstance(e, StepEvent) and e.step in steps]
            left += sum(counted)
            told += "".join(event.text for event in events if isinstance(event, NoticeEvent))
    assert left == SAMPLES - len(DAMAGED)
    assert all(re.search(rf"sample [\d, ]*\b{sample}\b", told) for sample in DAMAGED), told
    events = list(read_events(folder / "1" / "damaged" / "rank-0.jsonl"))
    (epoch,) = (event for event in events if isinstance(event, EpochEvent))
    (summary,) = (event for event in events if isinstance(event, SummaryEvent))
    assert (epoch.damaged, summary.damaged, epoch.samples) == (2, 2, SAMPLES - 2)


def check_checkpoints(folder: Path) -> None:
    names = sorted(path.name for path in folder.glob("epoch-*"))
    assert names == ["epoch-0000-samples-00000032", "epoch-0000-samples-00000064", "epoch-0001"]
    assert find_checkpoint(folder).path.name == "epoch-0001"
    within = read_manifest(folder / names[1])
    assert within.position == (0, 64)
    assert within.train_samples == SAMPLES
