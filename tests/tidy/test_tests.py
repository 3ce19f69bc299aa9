"""The tests are an index: short names, no test file that imports another one, a README whose files exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.tidy.sources import ROOT, TEST, all_files, module_name, package_files, relative, text_of

TESTS = ROOT / "tests"
NAME_CHARACTERS_MAX = 60
_IMPORT_OF_A_TEST = re.compile(
    r"^(?:from tests\.[\w.]*\btest_\w+ import|import tests\.[\w.]*\btest_)", re.MULTILINE
)
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
    rows = re.findall(
        r"^\| (?!behaviour|---|-).*\|$", (TESTS / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
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


class Class(NamedTuple):
    """A class of one file."""

    bases: list[str]
    methods: dict[str, bool]  # Each method: does it call the one of its own name in the base?


class Module(NamedTuple):
    """The classes of one file, and where each imported name comes from."""

    classes: dict[str, Class]
    imports: dict[str, tuple[str, str]]


_CALL_OF_THE_BASE = re.compile(r"\bsuper\(\)\.(?!__)\w+\(")


def test_overridden_methods_exist_in_the_base() -> None:
    """A double whose method calls super() lost its effect in silence when the base's method was renamed or moved."""
    paths = {module_name(path): path for path in [*package_files(), *test_files()]}
    checked, missing = 0, []
    for name, path in paths.items():
        if not _CALL_OF_THE_BASE.search(text_of(path)):  # To parse all files would take seconds.
            continue
        for double, found in module_of(path).classes.items():
            for method, calls_super in found.methods.items():
                if not calls_super or method.startswith("__"):
                    continue
                exists = base_has(paths, name, found, method)
                checked += exists is not None
                if exists is False:
                    missing.append(f"{name}: {double}.{method}")
    assert checked > 20
    assert missing == []


@cache
def module_of(path: Path) -> Module:
    classes: dict[str, Class] = {}
    imports: dict[str, tuple[str, str]] = {}
    for each in ast.walk(ast.parse(text_of(path))):
        if isinstance(each, ast.ClassDef):
            functions = [
                part for part in each.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            methods = {part.name: calls_base(part) for part in functions}
            classes[each.name] = Class([ast.unparse(base).split("[")[0] for base in each.bases], methods)
        elif isinstance(each, ast.ImportFrom):
            imports |= {part.asname or part.name: (each.module or "", part.name) for part in each.names}
    return Module(classes, imports)


def calls_base(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if the function calls `super()` with its own name."""
    return any(
        isinstance(each, ast.Attribute)
        and each.attr == function.name
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Name)
        and each.value.func.id == "super"
        for each in ast.walk(function)
    )


def base_has(paths: Mapping[str, Path], name: str, double: Class, method: str) -> bool | None:
    """Return True if a base has the method, False if none has it, None if a base is not of this repository."""
    is_known = True
    for base in double.bases:
        place, base_name = name, base
        while place in paths and base_name not in module_of(paths[place]).classes:
            place, base_name = module_of(paths[place]).imports.get(base_name, ("", base_name))
        if place not in paths:
            is_known = False
            continue
        found = module_of(paths[place]).classes[base_name]
        inherited = method in found.methods or base_has(paths, place, found, method)
        if inherited:
            return True
        is_known = is_known and inherited is not None
    return False if is_known else None
