"""The Linux calls that portable builds of Python lack, and kproc's start without them."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kproc.common import missing_calls
from kproc.common.sessions import wait_ended

REMOVED = {module.__name__: list(names) for module, names in missing_calls.MISSING.items()}
BROKEN_PYTHON = f"""
import importlib, os, sys
for module, names in {REMOVED}.items():
    for name in names:
        vars(importlib.import_module(module)).pop(name, None)
import kproc
assert "ctypes" not in sys.modules, "its open file could get the number of a closed standard stream"
from kproc.broker.ipc.region import Region
with Region.create(1, 100, 7) as region, Region.attach(os.dup(region.fd), generation=7) as same:
    region.write_word(8, 5)
    print(same.read_word(8))
"""


def test_kproc_adds_calls_that_python_lacks() -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN_PYTHON], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("5\n", "")


def test_constants_are_those_of_standard_library() -> None:
    for module, names in missing_calls.MISSING.items():
        for name, value in names.items():
            assert callable(value) or getattr(module, name) == value, name


def test_memfd_is_sealed_and_closed_by_exec() -> None:
    descriptor = missing_calls.memfd_create("of a test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        assert os.readlink(f"/proc/self/fd/{descriptor}") == "/memfd:of a test (deleted)"
        assert not os.get_inheritable(descriptor)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        with pytest.raises(PermissionError):
            os.write(descriptor, b"x")
    finally:
        os.close(descriptor)


def test_pidfd_sends_signal_and_shows_end() -> None:
    child = subprocess.Popen(["sleep", "60"])
    descriptor = missing_calls.pidfd_open(child.pid)
    try:
        assert not wait_ended(descriptor, 0)
        missing_calls.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            missing_calls.pidfd_send_signal(descriptor, signal.SIGKILL)
        with pytest.raises(ProcessLookupError):
            missing_calls.pidfd_open(child.pid)
    finally:
        os.close(descriptor)


def test_copy_file_range_copies_from_positions_and_offsets(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(b"0123456789")
    with (
        open(tmp_path / "from", "rb", buffering=0) as source,
        open(tmp_path / "to", "wb", buffering=0) as target,
    ):
        source.seek(7)
        ends = source.fileno(), target.fileno()
        assert missing_calls.copy_file_range(*ends, 100) == 3
        assert missing_calls.copy_file_range(*ends, 2, 1, 5) == 2
        assert missing_calls.copy_file_range(*ends, 100) == 0
    assert (tmp_path / "to").read_bytes() == b"789\0\x0012"
