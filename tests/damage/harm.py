"""Kinds of damage to a file. Each is drawn from a seed, so that a case can be repeated."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

_PAGE: Final = 4096


def _flip(path: Path, rng: random.Random) -> str:
    """One bit."""
    content = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    _write(path, content)
    return f"bit {bit % 8} of byte {bit // 8}"


def _cut(path: Path, rng: random.Random) -> str:
    """The tail."""
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"cut to {size} bytes"


def _zero(path: Path, rng: random.Random) -> str:
    """A page, or the whole of a smaller file."""
    content = bytearray(path.read_bytes())
    start = _PAGE * rng.randrange(-(-len(content) // _PAGE))
    end = min(start + _PAGE, len(content))
    content[start:end] = bytes(end - start)
    _write(path, content)
    return f"zeroes from byte {start} to {end}"


def _empty(path: Path, _rng: random.Random) -> str:
    os.truncate(path, 0)
    return "empty"


def _remove(path: Path, _rng: random.Random) -> str:
    path.unlink()
    return "removed"


def _write(path: Path, content: bytes | bytearray) -> None:
    """Overwrite in place: the inode and its marks stay, as when a disk goes bad."""
    with open(path, "r+b") as file:
        file.write(content)


HARMS: Final[dict[str, Callable[[Path, random.Random], str]]] = {
    "flip": _flip,
    "cut": _cut,
    "zero": _zero,
    "empty": _empty,
    "remove": _remove,
}


def damage(path: Path, kind: str, seed: int) -> str:
    """Damage a file that is not empty; return what was done, in words. An empty file can only be removed."""
    if not path.stat().st_size:
        kind = "remove"
    return HARMS[kind](path, random.Random(seed))
