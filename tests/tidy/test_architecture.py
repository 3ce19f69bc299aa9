"""The documents that explain the code name only files, functions and tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.sources import PACKAGE, ROOT, TEST, all_files, package_files, relative, survey_of, text_of

ARCHITECTURE, DECISIONS = PACKAGE / "ARCHITECTURE.md", PACKAGE / "DECISIONS.md"
INVARIANTS = ROOT / "tests/INVARIANTS.md"
PARTS = 10
_FILE = re.compile(r"([\w./-]+\.py)(?:: ([\w., ]+))?")
_BARE = re.compile(r"_?[A-Za-z]\w*(?:\.\w+)?")


@pytest.fixture(scope="module")
def architecture() -> str:
    return ARCHITECTURE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(architecture: str) -> str:
    """All documents that explain the code, one after the other."""
    others = [DECISIONS, INVARIANTS, *sorted(PACKAGE.glob("broker/*/README.md"))]
    return "\n".join([architecture, *(path.read_text(encoding="utf-8") for path in others)])


@cache
def names_of(path: Path) -> frozenset[str]:
    """Functions, methods (with and without their class), classes and constants of a module."""
    found = survey_of(path)
    names = found.constants | {each.name for each in found.classes}
    for function in found.functions:
        names |= {function.name, function.name.rpartition(".")[2]}
    return frozenset(names)


def file_of(name: str, part: str) -> Path | None:
    """The file that a path or a bare name means; in the file map a bare name belongs to the item's package."""
    places = [ROOT, PACKAGE, *(PACKAGE / room for room in ("broker", "common", "client", "tools"))]
    candidates = [place / name for place in places]
    folder = re.match(r"- `(\w+)/", part)
    if folder is not None:
        candidates += [place / folder[1] / name for place in places]
    return next((path for path in candidates if path.is_file()), None)


def cells(text: str) -> Iterator[tuple[str, bool]]:
    """(piece of text, is it a table's cell): cells one by one, list items joined over their lines, other lines."""
    item = ""
    for line in text.splitlines():
        if line.startswith("  ") and item:
            item += " " + line.strip()
            continue
        yield item, False
        item = line if line.startswith("- ") else ""
        if line.startswith("|"):
            yield from ((cell, True) for cell in line.strip("|").split("|"))
        elif not item:
            yield line, False
    yield item, False


def test_architecture_has_numbered_parts(architecture: str) -> None:
    parts = re.findall(r"^## (\d+)\. ", architecture, re.MULTILINE)
    assert parts == [str(number) for number in range(1, PARTS + 1)]


def test_decisions_are_numbered_in_order() -> None:
    numbers = re.findall(r"^(\d+)\. ", DECISIONS.read_text(encoding="utf-8"), re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]


def test_every_file_and_function_it_names_exists(text: str) -> None:
    problems = []
    for cell, is_cell in cells(text):
        current: Path | None = None
        for token in re.findall(r"`([^`]+)`", cell):
            found = _FILE.fullmatch(token)
            if found is None:
                if current is not None and _BARE.fullmatch(token) and token not in names_of(current):
                    problems.append(f"{relative(current)} has no {token}")
                continue
            path = file_of(found[1], cell)
            current = None
            if path is None:
                problems.append(f"no file {found[1]}")
            elif found[2]:
                current = path if is_cell else None
                problems += [
                    f"{found[1]} has no {name}" for name in found[2].split(", ") if name not in names_of(path)
                ]
    assert not problems, "\n".join(problems)


def test_every_method_it_names_exists_somewhere(text: str) -> None:
    known = {function.name for path in package_files() for function in survey_of(path).functions}
    for path in package_files():  # Attributes by their slots.
        known |= {f"{owner}.{value}" for owner, value in survey_of(path).strings}
    named = set(re.findall(r"`([A-Z]\w+\.\w+)`", text))
    assert named
    assert sorted(named - known) == []


def test_every_test_it_names_exists(text: str) -> None:
    known = set()
    for path in all_files():
        if relative(path).startswith("tests/"):
            known |= set(TEST.findall(text_of(path)))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 20
    assert sorted(named - known) == []
