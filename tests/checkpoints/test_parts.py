"""Files of a checkpoint that several ranks write: rank 0 publishes once all have."""

import threading
import time
from pathlib import Path

import pytest
import torch

from phalanx.checkpoints import checkpoint as parts
from phalanx.checkpoints.checkpoint import Notes, write_checkpoint, write_part
from phalanx.checkpoints.folder import begin
from phalanx.checkpoints.manifest import MODEL_FILE, OPTIMIZER_FILE, Manifest, verify
from phalanx.checkpoints.tensor_file import (
    SentParts,
    TensorFile,
    TextFile,
    file_names,
    read_tensors,
    stored_files,
)
from phalanx.errors import UserError


def manifest() -> Manifest:
    return Manifest(
        phalanx="0",
        model="mlp",
        dtype="float32",
        optimizer="adam",
        dataset="digits",
        seed=0,
        global_batch_size=1,
        epochs_done=1,
    )


def test_a_checkpoint_appears_when_the_last_of_its_files_is_written(tmp_path: Path) -> None:
    target = tmp_path / "epoch-0001"
    names, notes = file_names(MODEL_FILE, 3), Notes({0, 1, 2})
    files = [TensorFile.of(names[n], {f"w{n}": torch.full((n + 1,), n)}) for n in range(3)]
    begin(target)
    own = [files[0], TensorFile.of(OPTIMIZER_FILE, {}), TextFile("program.json", "{}")]
    first = threading.Thread(target=write_checkpoint, args=(tmp_path, manifest(), own, notes))
    first.start()
    write_part([files[1]], target=target, rank=1, others=notes)
    time.sleep(0.2)
    assert not target.exists(), "a file is missing"
    sent: list[int] = []
    mine = [SentParts(lambda: sent.append(1)), files[2]]
    write_part(mine, target=target, rank=2, others=notes)
    first.join(60)
    assert sent == [1]
    assert set(verify(target).files) == {*names, OPTIMIZER_FILE, "program.json"}
    assert {path.name for path in target.iterdir()} == {*verify(target).files, "manifest.json"}
    found = read_tensors(*stored_files(target, MODEL_FILE))
    assert [found[f"w{n}"].tolist() for n in range(3)] == [[0], [1, 1], [2, 2, 2]]
    assert not list(tmp_path.glob(".epoch*"))
    (target / names[1]).unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00003\.safetensors is missing"):
        verify(target)


def test_ranks_that_write_nothing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PATIENCE_S", 0.3)
    target, notes = tmp_path / "epoch-0001", Notes(set(range(12)))
    begin(target)
    write_part([], target=target, rank=3, others=notes)
    with pytest.raises(UserError) as raised:
        write_checkpoint(tmp_path, manifest(), [], notes)
    assert "ranks 1, 2, 4, 5, 6, 7, 8, 9 and 2 more wrote nothing for 0.3 s" in str(raised.value)
    assert not list(tmp_path.iterdir()), "nothing is left of it"


def test_a_rank_that_cannot_write_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"checkpoint .*epoch-0001 could not be written: No such"):
        write_part(
            [TextFile("a", "b")], target=tmp_path / "epoch-0001", rank=1, others=Notes({0, 1})
        )
