"""What a release changes and needs, in one place: `python packaging/release.py --help`.

The version is `__version__` of src/phalanx/__init__.py. Other files that have to name it are
written from there, and compared with it by `check` and by tests/test_repository.py.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
URL = "https://URL-of-this-repository"
MAIL = "ADDRESS-of-the-maintainers"
"""Stand where the address of the repository, and of its maintainers, is to be filled in."""
NO_HASH = "0" * 64
"""Stands in recipes for the SHA-256 of a source archive that is not published yet."""

INIT = "src/phalanx/__init__.py"
CITATION = "CITATION.cff"
CHANGELOG = "CHANGELOG.md"
FRAGMENTS = "changes"
RECIPES = (
    "packaging/spack/packages/py_phalanx/package.py",
    "packaging/easybuild/phalanx.eb",
    "packaging/conda/recipe.yaml",
)
WITH_ADDRESS = (
    "README.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md", CITATION, "pyproject.toml",
    ".github/ISSUE_TEMPLATE/config.yml", *RECIPES,
)  # fmt: skip
"""Files that may name the repository's address or the maintainers'."""

VERSION = re.compile(r'(?<=^__version__ = ")[^"]+(?="$)', re.MULTILINE)
CITED_VERSION = re.compile(r"(?<=^version: )\S+$", re.MULTILINE)
CITED_DATE = re.compile(r"(?<=^date-released: )\S+$", re.MULTILINE)
HEADING = re.compile(r"^## (\S+)", re.MULTILINE)
RECIPE_VERSION = re.compile(
    r'(?:(?<=^    version\(")|(?<=^version = ")|(?<=^  version: "))[^"]+(?=")', re.MULTILINE
)
RECIPE_HASH = re.compile(r'(?<=")[0-9a-f]{64}(?=")')


class Tree:
    """The files of the repository, by their names."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def text(self, name: str) -> str:
        return (self.root / name).read_text()

    def replace(self, name: str, pattern: re.Pattern[str], value: str) -> None:
        """Write `value` over what the pattern finds. Raises: ValueError if it finds nothing."""
        changed, count = pattern.subn(value, self.text(name))
        if not count:
            raise ValueError(f"{name}: nothing is found by {pattern.pattern}")
        (self.root / name).write_text(changed)

    def version(self) -> str:
        found = VERSION.search(self.text(INIT))
        if found is None:
            raise ValueError(f"{INIT} has no line __version__ = …")
        return found[0]

    def fragments(self) -> list[str]:
        folder = self.root / FRAGMENTS
        return sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")

    def with_placeholder(self) -> list[str]:
        """Return the files in which an address is still to be filled in."""
        names = [name for name in WITH_ADDRESS if (self.root / name).is_file()]
        bare = URL.removeprefix("https://")
        return [name for name in names if bare in self.text(name) or MAIL in self.text(name)]


def disagreements(tree: Tree) -> Iterator[str]:
    """Yield what names another version than `__version__`."""
    version = tree.version()
    cited = CITED_VERSION.search(tree.text(CITATION))
    if cited is None or cited[0] != version:
        yield f"{CITATION} names version {cited and cited[0]}, {INIT} {version}"
    newest = HEADING.search(tree.text(CHANGELOG))
    if newest is None or newest[1] != version:
        yield f"{CHANGELOG} begins with version {newest and newest[1]}, {INIT} has {version}"


def obstacles(tree: Tree, tag: str) -> Iterator[str]:
    """Yield why the tree cannot be released as `tag`."""
    yield from disagreements(tree)
    if tag != f"v{tree.version()}":
        yield f"the tag is {tag}, and the version {tree.version()}"
    if "not released" in tree.text(CHANGELOG):
        yield f"{CHANGELOG} says that the version is not released: release.py version {tag[1:]}"
    if fragments := tree.fragments():
        yield f"{FRAGMENTS}/ has what {CHANGELOG} lacks: {', '.join(fragments)}"
    if names := tree.with_placeholder():
        yield f"an address is missing in {', '.join(names)}: release.py address URL MAIL"


def notes(tree: Tree) -> str:
    """Return the section of the changelog about the newest version, without its heading."""
    sections = re.split(r"^## .*$", tree.text(CHANGELOG), flags=re.MULTILINE)
    return sections[1].strip() + "\n" if len(sections) > 1 else ""


def set_version(tree: Tree, version: str, date: str) -> None:
    """Write version and date into the files that name them, and the changelog of its fragments."""
    tree.replace(INIT, VERSION, version)
    tree.replace(CITATION, CITED_VERSION, version)
    tree.replace(CITATION, CITED_DATE, date)
    text = tree.text(CHANGELOG)
    if f"## {version} (not released)" in text:
        unreleased = re.compile(rf"^## {re.escape(version)} \(not released\)$", re.MULTILINE)
        tree.replace(CHANGELOG, unreleased, f"## {version} ({date})")
    else:
        towncrier = Path(sys.executable).parent / "towncrier"
        words = ["build", "--yes", "--version", version, "--date", date]
        subprocess.run([towncrier, *words], cwd=tree.root, check=True)


def fill_recipes(tree: Tree, version: str, sha256: str) -> None:
    """Write version and hash of the published source archive into the recipes."""
    for name in RECIPES:
        tree.replace(name, RECIPE_VERSION, version)
        tree.replace(name, RECIPE_HASH, sha256)


def fill_address(tree: Tree, url: str, mail: str) -> None:
    """Write the addresses of the repository and of its maintainers where they are missing."""
    for name in tree.with_placeholder():
        text = tree.text(name).replace(URL, url).replace(URL.removeprefix("https://"), url)
        (tree.root / name).write_text(text.replace(MAIL, mail))


def main() -> None:
    """Run the command that the words name."""
    tree = Tree(ROOT)
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    commands = parser.add_subparsers(required=True)

    def add(name: str, run: Callable[[argparse.Namespace], None], about: str, *words: str) -> None:
        command = commands.add_parser(name, help=about)
        for word in words:
            command.add_argument(word)
        command.set_defaults(run=run)

    def check(options: argparse.Namespace) -> None:
        if found := list(obstacles(tree, options.tag)):
            sys.exit("not to be released:\n  " + "\n  ".join(found))

    def recipes(options: argparse.Namespace) -> None:
        archive = Path(options.archive)
        version = archive.name.removeprefix("phalanx-").removesuffix(".tar.gz")
        fill_recipes(tree, version, hashlib.sha256(archive.read_bytes()).hexdigest())

    today = datetime.now(UTC).date().isoformat()
    add("version", lambda o: set_version(tree, o.version, today), "prepare a release", "version")
    add("check", check, "say whether a commit may have a tag", "tag")
    add("notes", lambda _: print(notes(tree), end=""), "print the newest version's changes")
    add("recipes", recipes, "fill in the recipes by a published source archive", "archive")
    add("address", lambda o: fill_address(tree, o.url, o.mail), "fill in addresses", "url", "mail")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
