"""How many bytecodes a piece of work runs: its cost in Python, whatever else the host does meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_bytecodes(work: Callable[[], object], *, unless_in: str) -> int:
    """Run `work`; functions of files whose path ends with `unless_in`, the caller's own as a rule, do not count."""
    count = 0

    def on_opcode(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return on_opcode

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename.endswith(unless_in):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return on_opcode

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
