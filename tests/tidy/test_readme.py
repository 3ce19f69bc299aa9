"""The README's tables say what the code does, and its files exist."""

from __future__ import annotations

import re

import pytest

from kproc import __version__
from tests.tidy.sources import ROOT

README = ROOT / "README.md"
LINES_MAX = 200


@pytest.fixture(scope="module")
def readme() -> str:
    return README.read_text(encoding="utf-8")


def test_readme_is_short(readme: str) -> None:
    assert len(readme.splitlines()) < LINES_MAX


def test_files_it_names_exist(readme: str) -> None:
    # Links and paths in backquotes that look like files of this repository.
    named = set(re.findall(r"\]\(([\w./-]+)\)", readme))
    named |= set(re.findall(r"`((?:scripts|kproc|tests|bench|\.ci)/[\w./-]+)`", readme))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_version_is_in_the_changelog() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_commands_it_shows_exist(readme: str) -> None:
    from typer.main import get_command

    from kproc.cli.commands import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    shown = set(re.findall(r"^\s*(?:\$ )?kproc (\w+)", readme, re.MULTILINE))
    assert shown
    assert shown <= set(commands)
