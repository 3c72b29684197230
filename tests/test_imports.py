"""The house of docs/architecture.md: imports point down the list, MPI and torch stay in rooms."""

import ast
from pathlib import Path

import pytest

import phalanx

SOURCE = Path(__file__).parents[1] / "src" / "phalanx"

# From the roof to the cellar; rooms on one line do not know each other.
FLOORS = [
    ["__main__"],
    ["cli"],
    ["doctor"],
    ["study", "bench"],
    ["report"],
    ["plan"],
    ["train"],
    ["run", "horovod"],
    ["checkpoints"],
    ["parallel"],
    ["data"],
    ["models"],
    ["gradients"],
    ["torch_backend"],
    ["comm"],
    ["jobs"],
    ["records"],
    ["errors", "__init__"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    """Dotted names of every module that `path` imports, at the top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


PUBLIC = SOURCE / "__init__.py"
"""Hands names of all rooms on, each when it is asked for."""


def imported_rooms(path: Path) -> set[str]:
    parts = (name.split(".") for name in imported_names(path) if name.startswith("phalanx."))
    return {name[1] if name[1] in FLOOR else "__init__" for name in parts}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    if path == PUBLIC:
        return
    here = room_of(path)
    wrong = {r for r in imported_rooms(path) if r != here and FLOOR[r] <= FLOOR[here]}
    assert not wrong, f"{here} must not import {wrong}"


def test_every_room_has_its_floor() -> None:
    assert {room_of(path) for path in MODULES} <= set(FLOOR)


@pytest.mark.parametrize(
    ("package", "rooms"),
    [
        ("mpi4py", {"comm"}),
        (
            "torch",
            {
                "train",
                "run",
                "checkpoints",
                "horovod",
                "parallel",
                "gradients",
                "data",
                "models",
                "torch_backend",
                "bench",
                "doctor",
            },
        ),
    ],
)
def test_package_stays_in_its_rooms(package: str, rooms: set[str]) -> None:
    users = {
        room_of(path)
        for path in MODULES
        if any(name.split(".")[0] == package for name in imported_names(path))
    }
    assert users <= rooms


def test_readers_of_records_import_nothing_else() -> None:
    for path in MODULES:
        if room_of(path) == "report":
            assert imported_rooms(path) <= {"report", "records", "errors", "__init__"}


FORMULAS = {
    *("comm.collectives", "comm.collectives.expected_traffic", "comm.dtypes", "comm.link"),
    *("comm.select", "comm.traffic", "gradients.buckets", "models.splits"),
    *("parallel.costs", "parallel.mesh", "parallel.options", "parallel.pipeline.cutting"),
    *("parallel.pipeline.layout", "parallel.pipeline.orders", "parallel.pipeline.timeline"),
}
"""Pure formulas and choices that runs themselves use, and `plan/` imports: none stands twice."""


def test_plans_import_records_and_the_formulas_of_runs() -> None:
    found = set()
    for path in MODULES:
        if room_of(path) == "plan":
            names = (name.split(".", 1)[1] for name in imported_names(path) if "phalanx." in name)
            found |= {name.rpartition(".")[0] or name for name in names}
    assert {name for name in found if name.split(".")[0] not in ("plan", "records", "errors")} == (
        FORMULAS
    )


def test_jobs_import_nothing_else() -> None:
    for path in MODULES:
        if room_of(path) == "jobs":
            assert imported_rooms(path) <= {"jobs", "records", "errors"}


OF_A_TRAINING = {
    *("checkpoints.find", "checkpoints.manifest", "comm.shared_folder"),
    *("jobs.detect", "jobs.launch_program", "jobs.live_line", "jobs.ranks", "jobs.record"),
    *("jobs.streams", "parallel.make", "parallel.option_groups", "parallel.options"),
    *("run.failure", "run.strategy_options"),
}
"""What `train/` imports beside `import phalanx`, data, models, records and errors: it falls, and
never rises."""


def test_a_training_is_a_program() -> None:
    """What `phalanx train` trains by is what a program could write: `start`, its values and errors;
    checks of options, the launch of its ranks, and copies of data for nodes are all else."""
    found = set()
    for path in MODULES:
        if room_of(path) == "train":
            names = (name.split(".", 1)[1] for name in imported_names(path) if "phalanx." in name)
            found |= {name.rpartition(".")[0] or name for name in names}
    free = {*phalanx.__all__, "data", "models", "records", "errors", "train"}
    assert {name for name in found if name.split(".")[0] not in free} == OF_A_TRAINING
