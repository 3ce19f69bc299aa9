"""The lock of a checkpoint: one run at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kproc.pipeline.errors import AlreadyRunning
from kproc.pipeline.lock import CheckpointLock, running_pid


def test_a_checkpoint_has_one_run_at_a_time(tmp_path: Path) -> None:
    assert running_pid(tmp_path) is None
    with CheckpointLock(tmp_path) as lock:
        assert lock.descriptor is not None
        assert running_pid(tmp_path) == os.getpid()
        assert os.fstat(lock.descriptor).st_mode & 0o077 == 0, "other users could lock it"
        with (
            pytest.raises(AlreadyRunning, match=f"in use by process {os.getpid()}"),
            CheckpointLock(tmp_path),
        ):
            pass
    assert running_pid(tmp_path) is None
    with CheckpointLock(tmp_path):
        pass


def test_lock_is_awaited_while_dead_drivers_jvm_holds_it(tmp_path: Path) -> None:
    # Stands for a driver that was killed: its child has the descriptor until it finds its input at an end.
    code = (
        "import os, subprocess, sys; from pathlib import Path; from kproc.pipeline.lock import CheckpointLock\n"
        "lock = CheckpointLock(Path(sys.argv[1])).__enter__()\n"
        "read, write = os.pipe()\n"
        "subprocess.Popen(['sh', '-c', 'cat; sleep 0.5'], stdin=read, pass_fds=(lock.descriptor,))\n"
        "print(flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    with CheckpointLock(tmp_path) as lock:
        assert lock.descriptor is not None
