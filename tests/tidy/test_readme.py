"""The README's tables say what the code does, and its files exist."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.figures import TARGETS, block_of, replaced
from kproc import __version__
from tests.tidy.sources import ROOT

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def readme() -> str:
    return README.read_text(encoding="utf-8")


def test_files_it_names_exist(readme: str) -> None:
    # Links and paths in backquotes that look like files of this repository.
    named = set(re.findall(r"\]\(([\w./-]+)\)", readme))
    named |= set(re.findall(r"`((?:scripts|kproc|tests|bench|\.ci)/[\w./-]+)`", readme))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_readme_lists_every_document(readme: str) -> None:
    folders = [ROOT, *(ROOT / name for name in ("kproc", "bench", "tests", "scripts"))]
    documents = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.glob("*.md")}
    listed = set(re.findall(r"^\| \[[^\]]+\]\(([\w./-]+\.md)\) \| \S", readme, re.MULTILINE))
    assert listed == documents - {"README.md"}


def test_its_pictures_are_whole_and_fetch_nothing(readme: str) -> None:
    drawn = [ROOT / name for name in re.findall(r"!\[[^\]]+\]\(([\w./-]+\.svg)\)", readme)]
    assert {path.name for path in drawn} == {"architecture.svg", "top.svg"}
    for path in drawn:
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "@font-face" not in text
        assert not re.search(r"(?:href|src)\s*=|url\(\s*[^#]|@import", text.replace("url(#", "")), path.name


def test_version_is_in_the_changelog() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_commands_it_shows_exist(readme: str) -> None:
    from typer.main import get_command

    from kproc.cli.commands import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    shown = set(re.findall(r"^\s*(?:\$ )?kproc (\w+)", readme, re.MULTILINE))
    assert shown
    assert shown <= set(commands)


@pytest.mark.parametrize("path", TARGETS, ids=lambda path: path.name)
def test_measured_figures_have_markers_date_and_commit(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    block = block_of(text)
    assert replaced(text, block, path.name) == text
    assert re.match(r"Measured on 20\d\d-[01]\d-[0-3]\d at commit [0-9a-f]{7,12}\b.*, in \d+ rounds?: ", block)
    assert "\n| | Kafka | kproc | ratio |" in block
