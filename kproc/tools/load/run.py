"""run_load: run the load generator and parse its result. Only this module knows the generator's command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

from kproc.tools.load.build import build

Result = dict[str, Any]


class LoadFailed(RuntimeError):
    """The generator could not run, or it received a wrong response. `result` is its report, if there is one."""

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
    """Run the generator once and return its result.

    mode: the generator's mode. pids: processes whose CPU time the generator measures. options: the generator's options,
    with underscores. on_held: called when mode idle has opened all connections, or with hold="yes" before
    mode fetch sends its first timed request. The run continues when `on_held` returns.

    Raises LoadFailed if the generator fails or receives wrong responses.
    """
    command = [str(build(with_tls="tls" in options)), mode, "--bootstrap", bootstrap]
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        for one in values:
            command += [f"--{name.replace('_', '-')}", str(one)]
    if named := ",".join(map(str, pids)):
        command += ["--pids", named]
    # Wait without a timeout, because the generator ends by itself with exit status 3 if it takes too long.
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
