"""Options from a file, and results as JSON."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Phalanx

TOML = """
model = "mlp"
epochs = 3
train-samples = 1000
validation_samples = 200
batch-size = 500
seed = 4
"""
YAML = TOML.replace(" = ", ": ")


@pytest.mark.parametrize(("name", "content"), [("run.toml", TOML), ("run.yaml", YAML)])
def test_a_run_of_a_file_as_json(
    name: str, content: str, forked_phalanx: Phalanx, tmp_path: Path
) -> None:
    """One word of the command line wins over the file."""
    (tmp_path / name).write_text(content)
    done = forked_phalanx("train", "--config", name, "--epochs", "1", "--json", "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert (run["status"], run["folder"], run["error"]) == ("completed", "run", None)
    config = run["config"]
    assert (config["epochs"], config["train_samples"], config["seed"]) == (1, 1000, 4)
    (epoch,) = run["epochs"]
    assert epoch["samples"] == 1000
    assert 0 < epoch["validation_accuracy"] <= 1
    assert run["images_per_s"] > 0
    assert "epoch 1/1" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.toml", None, "--config none.toml: there is no such file"),
        ("run.ini", "", "--config run.ini: use a file that ends in .toml, .yaml, .yml"),
        ("run.toml", "model = ", "--config run.toml cannot be read"),
        ("run.toml", "epoch = 3", "epoch"),
        ("run.toml", 'epochs = "many"', "many"),
        ("run.yaml", "- 1", "--config run.yaml has no options"),
        ("run.yaml", "{{{", "--config run.yaml cannot be read"),
    ],
)
def test_files_that_are_wrong(
    name: str, content: str | None, message: str, forked_phalanx: Phalanx, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    done = forked_phalanx("train", "--config", name)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("phalanx: ")
    assert len(done.stderr.splitlines()) <= 3
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
