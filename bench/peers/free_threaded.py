"""A free-threaded interpreter of this machine, if there is one that can run kproc; else why there is none.

Looked for on PATH, under pyenv and uv, and in KPROC_FREE_THREADED_PYTHON. A found one must really run without the
interpreter's lock once kproc's dependencies are imported: an extension that was not made for it turns the lock on
again, and the cell would measure the wrong thing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY: Final = Path(__file__).resolve().parents[2]
VARIABLE: Final = "KPROC_FREE_THREADED_PYTHON"
_NAMES: Final = ("python3.15t", "python3.14t", "python3.13t")
_PLACES: Final = (
    ("~/.pyenv/versions", "*t/bin/python"),
    ("~/.local/share/uv/python", "cpython-*freethreaded*/bin/python3"),
)
# Imports what a broker does, then says whether the lock is off, and if not, why.
_PROBE: Final = """
import sys, sysconfig
if not sysconfig.get_config_var("Py_GIL_DISABLED"):
    print("is built with the interpreter's lock"); raise SystemExit
try:
    import kproc.broker.supervisor.supervisor, kproc.broker.supervisor.inprocess, kproc.cli.main
except ImportError as error:
    print(f"cannot import kproc's dependencies: {error}"); raise SystemExit
print("takes the interpreter's lock again for one of kproc's dependencies" if sys._is_gil_enabled() else "ok")
"""
_PROBE_SECONDS_MAX: Final = 60


class FreeThreaded(NamedTuple):
    """The interpreter; or an empty path, and the reason in words."""

    python: str
    reason: str


@cache
def find() -> FreeThreaded:
    """The first that can run kproc without the interpreter's lock."""
    candidates = list(_candidates())
    reasons = []
    for python in candidates:
        answer = _probe(python)
        if answer == "ok":
            return FreeThreaded(python, "")
        reasons.append(f"{python} {answer}")
    if reasons:
        return FreeThreaded("", "; ".join(reasons))
    where = f"${VARIABLE}, {', '.join(_NAMES)} on PATH, pyenv and uv"
    return FreeThreaded("", f"no free-threaded interpreter is installed (looked at {where})")


def _candidates() -> list[str]:
    named = os.environ.get(VARIABLE, "")
    found = [named] if named else []
    found += [path for name in _NAMES if (path := shutil.which(name))]
    for place, pattern in _PLACES:
        found += sorted(map(str, Path(place).expanduser().glob(pattern)), reverse=True)
    return list(dict.fromkeys(found))


def _probe(python: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    try:
        answer = subprocess.run(
            [python, "-P", "-c", _PROBE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run: {error}"
    lines = (answer.stdout.strip() or answer.stderr.strip()).splitlines()
    return lines[-1] if lines else f"ended with {answer.returncode} and said nothing"
