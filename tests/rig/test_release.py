"""`scripts/release` refuses what must not be released before it builds anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import ROOT
from tests.support.wait import PATIENCE_SECONDS

DATED = "## [1.2.3] - 2026-11-23\n"


def git(repository: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    subprocess.run(["git", *identity, *arguments], cwd=repository, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One that could be released, but that its environment's script ends the release there."""
    (tmp_path / "kproc").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "kproc" / "__init__.py").write_text('__version__ = "1.2.3"\n', encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(DATED, encoding="utf-8")
    shutil.copy(ROOT / "scripts" / "release", tmp_path / "scripts" / "release")
    (tmp_path / "scripts" / "venv.sh").write_text("echo all checked; exit 7\n", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    return tmp_path


def release(repository: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [repository / "scripts" / "release", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_release_of_clean_dated_untagged_tree_runs_the_checks(repository: Path) -> None:
    assert release(repository) == (7, "all checked\n")


def test_release_of_modified_tree_is_rejected(repository: Path) -> None:
    (repository / "new").touch()
    code, said = release(repository)
    assert code == 1
    assert "not clean" in said


@pytest.mark.parametrize("line", ["## [1.2.3] - unreleased\n", "## [1.2.4] - 2026-11-23\n"])
def test_release_of_undated_version_is_rejected(repository: Path, line: str) -> None:
    (repository / "CHANGELOG.md").write_text(line, encoding="utf-8")
    git(repository, "commit", "-q", "-a", "-m", "other")
    code, said = release(repository)
    assert code == 1
    assert "CHANGELOG.md has no line '## [1.2.3] - YYYY-MM-DD'" in said


def test_release_of_tagged_version_is_rejected(repository: Path) -> None:
    git(repository, "tag", "v1.2.3")
    code, said = release(repository)
    assert code == 1
    assert "the tag v1.2.3 exists" in said


def test_release_dry_run_ignores_state_of_the_tree(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text("## [1.2.3] - unreleased\n", encoding="utf-8")
    git(repository, "tag", "v1.2.3")
    assert release(repository, "--dry-run") == (7, "all checked\n")
