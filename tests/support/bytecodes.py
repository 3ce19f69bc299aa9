"""Count the bytecodes of a piece of work: its cost in Python, independent of the host's load."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

_SOURCE = Path(__file__).with_name("bytecodes.c")


def count_bytecodes(work: Callable[[], object], *, unless_in: str) -> int:
    """Run `work`; functions of files whose path ends with `unless_in`, the caller's own as a rule, do not count."""
    counter = compiled_counter()
    if counter is None or sys.gettrace() is not None:
        return count_in_python(work, unless_in=unless_in)
    end = os.fsencode(unless_in)
    _enable_events()
    counter.start_counting(end)
    try:
        work()
    finally:
        count = counter.stop_counting()
    return int(count)


@cache
def compiled_counter() -> ctypes.PyDLL | None:
    """Return the library of bytecodes.c, or None on a machine without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="bytecodes-") as directory:
        path = Path(directory, "bytecodes.so")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(path), str(_SOURCE)], check=True)
        library = ctypes.PyDLL(str(path))
    library.start_counting.argtypes, library.start_counting.restype = [ctypes.c_char_p], None
    library.stop_counting.argtypes, library.stop_counting.restype = [], ctypes.c_long
    for each in (library.pause_counting, library.resume_counting):
        each.argtypes, each.restype = [], None
    return library


def count_in_python(work: Callable[[], object], *, unless_in: str) -> int:
    """Count without a compiler, and while a debugger or a measurement of coverage has its own trace function."""
    count = 0

    def on_opcode(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return on_opcode

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename.endswith(unless_in):
            return None
        # Python 3.13 has no events for bytecodes of a frame without f_trace.
        frame.f_trace = on_opcode
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return on_opcode

    before = sys.gettrace()
    _enable_events()
    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def _enable_events() -> None:
    """Mark a frame, because Python 3.12 has events for bytecodes only if one had this flag before the trace began."""
    sys._getframe().f_trace_opcodes = True
