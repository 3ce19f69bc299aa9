"""The wheel and the sdist, built without an index and used in an environment where kproc was never seen."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.broker import ROOT
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.clients, pytest.mark.own_broker]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
AUTO = Path("kproc/spark/auto")
NOT_PACKED = {"__pycache__", ".mypy_cache", "auto"}


def hatchling(source: Path, target: str, out: Path) -> Path:
    """What the build backend makes of a directory."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    [built] = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hatchling(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hatchling(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of programs of an environment that has the wheel, and borrows what kproc depends on."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))
    # A line of a .pth file brings a directory, and not what that directory's own .pth files would: no checkout.
    borrowed = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet"]
    # pip would compile every module. The tests import half of them.
    pip += ["--no-compile", "--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check", str(wheel)]
    subprocess.run(pip, check=True, timeout=PATIENCE_SECONDS)
    return home / "bin"


def ours(path: Path) -> bool:
    """Sources and data, not what Python and scripts/build-compiled leave beside them."""
    return path.is_file() and not NOT_PACKED & set(path.parts) and path.suffix not in (".so", ".pyc")


def environment_of_a_user() -> dict[str, str]:
    """Return our environment without what the interpreter reads, but for the place of compiled modules.

    In CI nothing that is borrowed has been compiled beside its source.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") or name == "PYTHONPYCACHEPREFIX"
    }


def test_wheel_contains_only_the_package(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kproc").rglob("*") if ours(path)}
    # Spark looks for the names of top-level packages.
    wanted |= {path.relative_to(ROOT / AUTO).as_posix() for path in (ROOT / AUTO).rglob("*.py")}
    assert packed == wanted
    needed = {"kproc/py.typed", "kproc/tools/load/kload.c", "kproc/tools/load/kload.h", "kproc/pipeline/worker-python"}
    assert needed <= packed
    assert {name.partition("/")[0] for name in packed} == {"kproc", "pyspark_kproc", "pyspark_kproc_log"}


def test_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    # The argument `filter` of extractall came with CPython 3.11.4.
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        # A wheel contains nothing of the tests and benchmarks, which are half of the files.
        files = {member.name.partition("/")[2]: member for member in archive if member.isfile()}
        wanted = [member for name, member in files.items() if not name.startswith(("tests/", "bench/"))]
        archive.extractall(tmp_path / "unpacked", members=wanted)
    for needed in ("tests/conftest.py", "scripts/check", "bench/README.md", "LICENSE", "CHANGELOG.md"):
        assert needed in files
    [source] = (tmp_path / "unpacked").iterdir()
    (tmp_path / "wheel").mkdir()
    assert hatchling(source, "wheel", tmp_path / "wheel").read_bytes() == wheel.read_bytes()


def test_wheel_metadata_lists_extras_and_dependencies(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(archive.read(name))
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    always = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(always) == sorted(PROJECT["dependencies"])


def test_an_installed_kproc_serves_records(installed: Path, tmp_path: Path) -> None:
    def kproc(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [installed / "kproc", *arguments],
            cwd=tmp_path,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    environment = environment_of_a_user()
    code = "import kproc; print(kproc.__file__)"
    run = [installed / "python", "-c", code]
    where = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent)
    assert "produce" in kproc("--help")
    ready = tmp_path / "ready.json"
    serve = [installed / "kproc", "dev", "--port", "0", "--ready-file", ready]
    with open(tmp_path / "log", "wb") as log:
        broker = subprocess.Popen(serve, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: ready.exists() or broker.poll() is not None, seconds=60)
        bootstrap = json.loads(ready.read_bytes())["bootstrap"]
        kproc("produce", "greetings", "--bootstrap", bootstrap, stdin="hello\nthere\n")
        assert kproc("consume", "greetings", "--bootstrap", bootstrap) == "hello\nthere\n"
    finally:
        broker.terminate()
        broker.wait(PATIENCE_SECONDS)
    assert broker.returncode == 0, (tmp_path / "log").read_text(encoding="utf-8")


def test_installed_wheel_provides_pytest_fixtures(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import kproc\n"
        "def test_it(kproc_broker, kproc_topic):\n"
        f"    assert kproc.__file__.startswith({str(installed.parent)!r})\n"
        "    assert kproc_broker.is_running and kproc_topic\n",
        encoding="utf-8",
    )
    environment = environment_of_a_user()
    command = [installed / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
