"""The tests are an index: short names, no test file that imports another one, a README whose files exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.sources import ROOT, TEST, all_files, relative, text_of

TESTS = ROOT / "tests"
NAME_CHARACTERS_MAX = 60
_IMPORT_OF_A_TEST = re.compile(r"^(?:from tests\.[\w.]*\btest_\w+ import|import tests\.[\w.]*\btest_)", re.MULTILINE)
_INDEX_COLUMNS = {2: "unit/broker", 3: "api", 4: "", 5: "faults", 6: ""}


def test_files() -> list[Path]:
    return [path for path in all_files() if relative(path).startswith("tests/")]


test_files.__test__ = False  # type: ignore[attr-defined]


def test_names_of_tests_have_at_most_60_characters() -> None:
    names = [(relative(path), name) for path in test_files() for name in TEST.findall(text_of(path))]
    assert len(names) > 1000
    assert [each for each in names if len(each[1]) > NAME_CHARACTERS_MAX] == []


def test_no_test_file_imports_another() -> None:
    assert [relative(path) for path in test_files() if _IMPORT_OF_A_TEST.search(text_of(path))] == []


def test_files_of_the_index_exist() -> None:
    """The table of tests/README.md: each column has names below its folder."""
    rows = re.findall(r"^\| (?!behaviour|---|-).*\|$", (TESTS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    missing = []
    count = 0
    for row in rows:
        cells = row.split("|")
        if len(cells) != len(_INDEX_COLUMNS) + 3:
            continue  # Another table.
        for at, folder in _INDEX_COLUMNS.items():
            for name in re.findall(r"`([\w/]+)`", cells[at]):
                count += 1
                place = TESTS / folder / name
                if not (place.is_dir() or place.with_suffix(".py").is_file()):
                    missing.append(f"{folder}/{name}")
    assert count > 100
    assert missing == []
