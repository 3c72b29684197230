"""What disks, kills and people do to files; the same for the same seed."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path


def damage(folder: Path, chance: random.Random) -> str:
    """Damage one file below `folder`; returns what was done, for the message of a test."""
    path = chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    kind = chance.choice(KINDS)
    before = path.read_bytes()
    kind(path, before, chance)
    if path.is_file() and path.read_bytes() == before:
        path.unlink()
        return f"{path.relative_to(folder)} deleted"
    return f"{path.relative_to(folder)} {kind.__name__.strip('_')}"


def _flipped(path: Path, content: bytes, chance: random.Random) -> None:
    changed = bytearray(content or b" ")
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    path.write_bytes(changed)


def _cut(path: Path, content: bytes, chance: random.Random) -> None:
    path.write_bytes(content[: chance.randrange(len(content) or 1)])


def _emptied(path: Path, _: bytes, __: random.Random) -> None:
    path.write_bytes(b"")


def _zeroed(path: Path, content: bytes, chance: random.Random) -> None:
    """A block that never reached the disk."""
    begin = chance.randrange(len(content) or 1)
    end = min(len(content), begin + chance.choice((16, 512, 4096)))
    path.write_bytes(content[:begin] + bytes(end - begin) + content[end:])


def _grown(path: Path, content: bytes, chance: random.Random) -> None:
    path.write_bytes(content + chance.choice((b"\n{}\n", b"\xff\xfe", content, bytes(4096))))


def _shuffled(path: Path, content: bytes, chance: random.Random) -> None:
    lines = content.splitlines(keepends=True)
    chance.shuffle(lines)
    path.write_bytes(b"".join(lines))


def _renumbered(path: Path, content: bytes, chance: random.Random) -> None:
    """Another number where one stands, as somebody edits it."""
    found = list(re.finditer(rb"\d+", content[:20_000]))
    if not found:
        path.write_bytes(b"")
        return
    place = chance.choice(found)
    number = chance.choice((b"0", b"-1", b"99999999999999999999", b"1e400", b'"7"', b"null"))
    path.write_bytes(content[: place.start()] + number + content[place.end() :])


def _renamed(path: Path, content: bytes, chance: random.Random) -> None:
    """A letter of a word is another one: a field that nobody knows, in place of one."""
    found = list(re.finditer(rb"[a-z_]{4,}", content[:20_000]))
    if not found:
        path.write_bytes(b"")
        return
    place = chance.choice(found).start()
    path.write_bytes(content[:place] + b"Z" + content[place + 1 :])


def _deleted(path: Path, _: bytes, __: random.Random) -> None:
    path.unlink()


def _folder(path: Path, _: bytes, __: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _nowhere(path: Path, _: bytes, __: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere/at/all")


def _itself(path: Path, _: bytes, __: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _other(path: Path, _: bytes, chance: random.Random) -> None:
    """A neighbour's content."""
    neighbours = sorted(p for p in path.parent.iterdir() if p.is_file() and p != path)
    if neighbours:
        shutil.copyfile(chance.choice(neighbours), path)


KINDS: tuple[Callable[[Path, bytes, random.Random], None], ...] = (
    _flipped,
    _flipped,
    _cut,
    _emptied,
    _zeroed,
    _grown,
    _shuffled,
    _renumbered,
    _renumbered,
    _renamed,
    _deleted,
    _folder,
    _nowhere,
    _itself,
    _other,
)
