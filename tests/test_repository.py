"""What somebody finds who takes the repository over: files agree, workflows run what people run."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import phalanx

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
PINNED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line
)
OTHER_COMMANDS = {
    "python3 packaging/release.py notes > notes.md",
    'gh release create "$GITHUB_REF_NAME" dist/* --verify-tag --notes-file notes.md',
}
"""Commands of workflows that are no target of the Makefile."""


@cache
def release() -> ModuleType:
    """Load packaging/release.py, which is a program."""
    spec = importlib.util.spec_from_file_location("release", ROOT / "packaging" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> Any:
    """Read YAML as GitHub does, where `on` is a word and no truth value."""
    return yaml.load(path.read_text(), yaml.BaseLoader)


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.name}, {name}", step)
        for path in WORKFLOWS
        for name, job in read(path)["jobs"].items()
        for step in job.get("steps", [])
    ]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("dependabot", ".github/dependabot.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_of_the_repository_fit_their_schemas(schema: str, files: str) -> None:
    found = [str(path) for path in ROOT.glob(files)]
    assert found
    checked = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "check_jsonschema"),
            *("--builtin-schema", f"vendor.{schema}", *found),
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_workflows_run_targets_of_the_makefile() -> None:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text()))
    commands = [(place, step["run"]) for place, step in steps() if "run" in step]
    assert len(commands) > 8
    for place, command in commands:
        words = command.split()
        assert command in OTHER_COMMANDS or (words[0] == "make" and words[1] in targets), place


def test_workflows_hold_no_more_rights_than_they_need() -> None:
    """A token that a test leaks, or a title that is run as a command, can then do little."""
    for path in WORKFLOWS:
        workflow = read(path)
        assert workflow["permissions"] == {}, path.name
        for name, job in workflow["jobs"].items():
            assert "permissions" in job, (path.name, name)
            assert "timeout-minutes" in job or "uses" in job, (path.name, name)
    for place, step in steps():
        assert "${{" not in step.get("run", ""), place
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] == "false", place


def test_workflows_try_each_python_and_mpi_that_is_promised() -> None:
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    for name, job in (("test.yml", "fast"), ("wheels.yml", "install")):
        matrix = read(ROOT / ".github" / "workflows" / name)["jobs"][job]["strategy"]["matrix"]
        assert matrix["python"] == promised
        assert set(matrix["mpi"]) <= PROJECT["project"]["optional-dependencies"].keys()


def test_pre_commit_takes_the_pinned_tools() -> None:
    hooks = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    pins = [pin for hook in hooks for pin in hook.get("additional_dependencies", [])]
    assert pins
    assert {pin: PINNED[pin.split("==")[0]] for pin in pins} == {
        pin: pin.split("==")[1] for pin in pins
    }


def test_tools_of_releases_are_pinned() -> None:
    tools = re.search(r"^RELEASE_TOOLS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tools is not None
    assert set(tools[1].split()) <= PINNED.keys()


def test_one_version_everywhere() -> None:
    module = release()
    tree = module.Tree(ROOT)
    assert tree.version() == phalanx.__version__
    assert list(module.disagreements(tree)) == []
    assert "version" in PROJECT["project"]["dynamic"], "read from phalanx.__version__"
    for name in module.RECIPES:
        assert module.RECIPE_VERSION.findall(tree.text(name)), name
        assert len(module.RECIPE_HASH.findall(tree.text(name))) == 1, name


def test_fragments_have_names_that_the_changelog_takes() -> None:
    kinds = "|".join(kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"])
    names = release().Tree(ROOT).fragments()
    assert not [name for name in names if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({kinds})\.md", name)]


def test_missing_addresses_are_only_where_a_release_looks_for_them() -> None:
    module = release()
    marks = (module.URL.removeprefix("https://"), module.MAIL)
    listed = subprocess.run(
        ["git", "grep", "-lE", "|".join(marks)], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode > 1:
        pytest.skip("no git repository here")
    assert set(listed.stdout.split()) - {"packaging/release.py"} <= set(module.WITH_ADDRESS)


@pytest.fixture
def tree(tmp_path: Path) -> Any:
    """A copy of the files that a release changes."""
    module = release()
    names = {module.INIT, module.CITATION, module.CHANGELOG, *module.WITH_ADDRESS}
    for name in names:
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / module.FRAGMENTS).mkdir()
    (tmp_path / module.CHANGELOG).write_text("# Changelog\n\n## 0.1.0 (not released)\n\n- all\n")
    for name, pattern in ((module.INIT, module.VERSION), (module.CITATION, module.CITED_VERSION)):
        module.Tree(tmp_path).replace(name, pattern, "0.1.0")
    return module.Tree(tmp_path)


def test_a_release_is_refused_while_something_is_missing(tree: Any) -> None:
    module = release()
    (tree.root / module.FRAGMENTS / "7.new.md").write_text("More.")
    tree.replace(module.INIT, module.VERSION, "0.2.0")
    found = "\n".join(module.obstacles(tree, "v0.3.0"))
    assert "CITATION.cff names version 0.1.0, src/phalanx/__init__.py 0.2.0" in found
    assert "CHANGELOG.md begins with version 0.1.0" in found
    assert "the tag is v0.3.0, and the version 0.2.0" in found
    assert "not released" in found
    assert "changes/ has what CHANGELOG.md lacks: 7.new.md" in found


def test_a_release_is_made_ready_by_two_commands(tree: Any) -> None:
    module = release()
    module.fill_address(tree, "https://example.org/phalanx", "us@example.org")
    module.set_version(tree, "0.1.0", "2027-01-02")
    assert list(module.obstacles(tree, "v0.1.0")) == []
    assert "git clone https://example.org/phalanx phalanx" in tree.text("README.md")
    assert "write to us@example.org" in tree.text("SECURITY.md")
    assert "date-released: 2027-01-02" in tree.text(module.CITATION)
    assert "## 0.1.0 (2027-01-02)" in tree.text(module.CHANGELOG)
    assert module.notes(tree) == "- all\n"


def test_recipes_take_version_and_hash_of_the_published_archive(tree: Any) -> None:
    module = release()
    module.fill_recipes(tree, "0.9.1", "ab" * 32)
    for name in module.RECIPES:
        text = tree.text(name)
        assert "0.9.1" in text, name
        assert text.count("ab" * 32) == 1, name
        assert module.NO_HASH not in text, name
    module.fill_recipes(tree, "0.9.2", "cd" * 32)  # again, over what is there
    assert all("0.9.1" not in tree.text(name) for name in module.RECIPES)
