"""`scripts/test` and `.ci/run`: the commands that they run, by an interpreter that only prints its arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import kafka_jars
from tests.support.broker import ROOT
from tests.support.wait import PATIENCE_SECONDS

FAKE_PYTHON = """#!/bin/sh
echo "ran: $*"
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python";;
    *"-q tests/tidy"*) ;;
    *pytest*) echo "== 3 passed in 1 s =="; exit "${PYTEST_CODE:-0}";;
    *mypy*) exit "${MYPY_CODE:-0}";;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts beside an environment that is made already."""
    for name in ("scripts", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "venv" / ".installed-dev,spark,bench")
    return tmp_path


def run(checkout: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / command[0], *command[1:]],
        env={**os.environ, "KPROC_VENV": str(checkout / "venv"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def test_scripts_test_of_whole_suite_uses_workers(checkout: Path) -> None:
    done = run(checkout, "scripts/test")
    lines = done.stdout.splitlines()
    workers = 2 * len(os.sched_getaffinity(0)) + 1
    options = "-m not slow --transports process,thread,inline"
    assert f"ran: -m pytest {options} --workers {workers} --timeout 900" in lines
    assert any(line.startswith(f"+ the whole suite with {workers} workers: about ") for line in lines)
    assert "ran: -m tests.support.kafka_jars --if-possible" in lines


@pytest.mark.parametrize(
    "chosen", [("tests/unit",), ("-m", "faults", "--rounds", "9"), ("-n", "0"), ("--pdb",)]
)
def test_scripts_test_of_chosen_tests_adds_no_workers(checkout: Path, chosen: tuple[str, ...]) -> None:
    done = run(checkout, "scripts/test", *chosen)
    last = done.stdout.splitlines()[-2]
    assert last == f"ran: -m pytest -m not slow --transports process,thread,inline {' '.join(chosen)}"
    assert "--workers" not in done.stdout


def test_scripts_test_ends_with_pytests_code(checkout: Path) -> None:
    done = run(checkout, "scripts/test", PYTEST_CODE="1")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "== 3 passed in 1 s =="


def run_ci(checkout: Path, *arguments: str, **codes: str) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run` with the fake interpreter, and a fake kcat so that it installs none."""
    kcat = checkout / "bin" / "kcat"
    kcat.parent.mkdir()
    kcat.write_text("#!/bin/sh\n")
    kcat.chmod(0o755)
    path = f"{kcat.parent}:{os.environ['PATH']}"
    return run(checkout, ".ci/run", *arguments, PYTHON=str(checkout / "venv/bin/python"), PATH=path, **codes)


def test_ci_run_ends_with_code_of_tests(checkout: Path) -> None:
    done = run_ci(checkout, "-v", PYTEST_CODE="3")
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert any("--timeout 900 --ignore=tests/tidy -v" in line for line in lines if line.startswith("ran: "))
    assert "== 3 passed in 1 s ==" in lines


def test_ci_run_fails_when_checks_do(checkout: Path) -> None:
    done = run_ci(checkout, MYPY_CODE="1")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "scripts/check has failed; its output stands above"


def test_scripts_check_fails_when_types_do(checkout: Path) -> None:
    assert run(checkout, "scripts/check").returncode == 0
    assert run(checkout, "scripts/check", MYPY_CODE="1").returncode == 1


def run_check_pythons(checkout: Path, *arguments: str, **codes: str) -> subprocess.CompletedProcess[str]:
    """Run `scripts/check-pythons` where only 3.12 is installed, with the fake interpreter."""
    python = checkout / "bin" / "python3.12"
    python.parent.mkdir()
    shutil.copy(checkout / "venv/bin/python", python)
    path = f"{python.parent}:/usr/bin:/bin"
    return run(checkout, "scripts/check-pythons", *arguments, PATH=path, HOME=str(checkout), **codes)


def test_scripts_check_pythons_checks_installed_ones(checkout: Path) -> None:
    done = run_check_pythons(checkout, "--test", "3.12")
    assert done.returncode == 0, done.stdout
    assert "+ .venv-3.12/bin/python -m mypy" in done.stdout
    assert done.stdout.splitlines()[-1] == "== 3 passed in 1 s =="


def test_scripts_check_pythons_names_what_fails(checkout: Path) -> None:
    done = run_check_pythons(checkout, "3.12", "3.13", MYPY_CODE="1")
    assert done.returncode == 1
    assert "Python 3.13: not installed" in done.stdout
    assert done.stdout.splitlines()[-1] == "failed with Python 3.12 3.13"


def test_jars_that_cannot_be_fetched_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kafka_jars.main(["--if-possible"]) == 0
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    assert kafka_jars.main(["--if-possible"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("are skipped: no java on the PATH")
    assert "no mvn on the PATH to fetch them" in second
