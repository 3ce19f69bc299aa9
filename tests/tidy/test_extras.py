"""Installed packages are the imported ones: dependencies by the package, extras by the feature each is named after."""

from __future__ import annotations

import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, all_files, relative, text_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORT = re.compile(r"\s*(?:import|from) ([A-Za-z_]\w*)[\w.]*(?: import .*| as \w+)?(?:  # .*)?$")
OURS = {"kproc", "bench", "examples", "tests", "scripts"}
# Modules that are not called after what brings them.
BROUGHT_BY = {
    "_pytest": "pytest",
    "py4j": "pyspark",
    "re2": "google-re2",
    "PIL": "matplotlib",
    "kafka": "kafka-python",
    "yaml": "pyyaml",
}
# Where the import names no feature: pandas is asked for by PySpark itself, the others are run as programs.
NOT_IMPORTED = {"pandas", "mypy", "ruff", "pytest-timeout", "pytest-xdist", "types-psutil", "cython", "hatchling"}
# Which files each extra is for; what none is for has the dependencies alone.
FEATURES = {
    "spark": r"kproc/spark/.*|kproc/pipeline/.*|kproc/cli/pipeline.*",
    "bench": r"bench/.*|examples/.*",
    "compiled": r"scripts/build-compiled",
    "dev": r"scripts/_quickstart.py|tests/.*|kproc/pytest_plugin.py",
}
# Some of the benchmarks are of Spark's side, and say which extras they need.
BESIDE = {"bench": {"spark"}, "dev": {"spark", "bench"}}


def names_of(requirements: list[str]) -> set[str]:
    """The distributions' names, as they are compared."""
    return {re.split(r"[\[<>=!~ ;]", line, maxsplit=1)[0].lower().replace("_", "-") for line in requirements}


DEPENDENCIES = names_of(PROJECT["dependencies"])
EXTRAS = {name: names_of(lines) for name, lines in PROJECT["optional-dependencies"].items()}


@cache
def imports() -> list[tuple[Path, int, str]]:
    """(file, line, distribution) of every import of other people's modules, those inside functions, too.

    By the line: a tree of each file of the repository would take seconds, for the same answer.
    """
    found = []
    for path in all_files():
        for line, text in enumerate(text_of(path).splitlines(), 1):
            match = IMPORT.match(text)
            if match and match[1] not in sys.stdlib_module_names and match[1] not in OURS:
                found.append((path, line, BROUGHT_BY.get(match[1], match[1].replace("_", "-"))))
    return found


def allowed(path: Path) -> set[str]:
    """What may be imported there."""
    extra = next((name for name, files in FEATURES.items() if re.fullmatch(files, relative(path))), None)
    if extra is None:
        return DEPENDENCIES
    return DEPENDENCIES.union(*(EXTRAS[name] for name in {extra, *BESIDE.get(extra, ())}))


def test_every_import_is_of_what_its_feature_installs() -> None:
    strangers = [
        f"{relative(path)}:{line}: {name}" for path, line, name in imports() if name not in allowed(path)
    ]
    assert strangers == []


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_nothing_is_installed_that_its_feature_does_not_import(extra: str | None) -> None:
    where = FEATURES[extra] if extra is not None else r"kproc/.*"
    imported = {name for path, _, name in imports() if re.fullmatch(where, relative(path))}
    installed = EXTRAS[extra] if extra is not None else DEPENDENCIES
    assert installed - NOT_IMPORTED - imported == set()


def test_the_compiler_of_the_extra_is_what_the_script_runs() -> None:
    assert EXTRAS["compiled"] == {"cython"}
    assert "-m cython" in (ROOT / "scripts" / "build-compiled").read_text(encoding="utf-8")


def texts() -> list[Path]:
    """Whatever tells people what to install."""
    documents = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / ".ci" / "run"]
    for folder in ("kproc", "bench", "examples", "scripts"):
        documents += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".sh", "")]
    return [path for path in documents if path.is_file()]


def test_everything_people_are_told_to_install_exists() -> None:
    """From a checkout, that is: kproc is on no index yet. Extras that are named are extras that there are."""
    wrong = []
    told = set()
    for path in texts():
        text = path.read_text(encoding="utf-8")
        for words in re.findall(r"pip install[^\n`]*", text):
            if re.search(r"\bkproc(\[|\W*$|==)", words.partition(" in a checkout")[0]):
                wrong.append(f"{relative(path)}: {words}")
            told |= {name for group in re.findall(r"\.\[([\w,]+)\]", words) for name in group.split(",")}
    assert wrong == []
    assert told
    assert told <= set(EXTRAS)
