"""Runs the load generator and reads its answer: the only place that knows its command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

from kproc.tools.load.build import build

Result = dict[str, Any]


class LoadFailed(RuntimeError):
    """The generator could not run, or got a wrong answer; `result` holds what it reported, if anything."""

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result


def run_load(
    mode: str,
    bootstrap: str,
    *,
    pids: Iterable[int] = (),
    on_held: Callable[[], None] | None = None,
    **options: object,
) -> Result:
    """One run; `options` are the generator's own, with underscores. Wrong answers raise LoadFailed.

    `on_held` is called once the idle mode has all its connections, and once the fetch mode with hold="yes" has
    read the topic for its index; the run goes on when it returns.
    """
    command = [str(build(with_tls="tls" in options)), mode, "--bootstrap", bootstrap]
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        for one in values:
            command += [f"--{name.replace('_', '-')}", str(one)]
    if named := ",".join(map(str, pids)):
        command += ["--pids", named]
    # The generator watches its own time (exit status 3), so no timeout here can be the one that fires first.
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            if on_held is not None and child.stderr is not None and child.stderr.readline() == "held\n":
                on_held()
            stdout, stderr = child.communicate("\n")
        except BaseException:
            child.kill()
            raise
    if child.returncode not in (0, 1) or not stdout:
        raise LoadFailed(f"{' '.join(command[1:])}: exit {child.returncode}: {stderr.strip()}")
    result: Result = json.loads(stdout)
    if child.returncode != 0:
        raise LoadFailed(f"{' '.join(command[1:])}: {result.get('first_error', stderr.strip())}", result)
    return result
