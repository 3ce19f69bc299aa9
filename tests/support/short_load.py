"""Short runs of the load generator, which become longer on a machine too busy to answer anything in them."""

from __future__ import annotations

from typing import Any

from kproc.tools.load.run import run_load

# In a closed loop the generator and the broker keep a core busy all the time.
SHORT: dict[str, Any] = {"seconds": 0.1, "warmup": 0.02}


def run_short_load(kind: str, address: str, *, counted: str = "requests", **options: Any) -> dict[str, Any]:
    """Return the result of the first run in which something is `counted`, of 0.1, 2 and 20 s."""
    result: dict[str, Any] = {}
    for seconds in (SHORT["seconds"], 2, 20):
        result = run_load(kind, address, **SHORT | {"seconds": seconds}, **options)
        if result[counted]:
            break
    return result
