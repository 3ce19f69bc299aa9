"""Draws `kproc top` at a broker that works, as bench/pictures/top.svg; needs a C compiler for the load generator."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

import kproc
from kproc.cli.status_source import StatusSource
from kproc.cli.top import View
from kproc.tools.load.run import run_load

WIDTH, HEIGHT = 100, 22
LOADS = (
    ("produce", {"topic": "clicks", "connections": 16, "partitions": 8}),
    ("tail", {"topic": "orders", "consumers": 3, "batch_bytes": 16_000}),
)
# Without its web fonts: who shows a picture of a repository fetches none.
FORMAT = re.sub(r"\s*@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def main() -> None:
    (target,) = map(Path, sys.argv[1:])
    settings = {"num.network.threads": 2, "num.io.threads": 2}
    with kproc.Broker(settings=settings) as broker:
        loads = [
            threading.Thread(
                target=run_load, args=(mode, broker.bootstrap), kwargs={**options, "warmup": 1, "seconds": 6}
            )
            for mode, options in LOADS
        ]
        for load in loads:
            load.start()
        time.sleep(3)
        with StatusSource(broker.bootstrap) as source:
            first, began = source.request_status(), time.monotonic()
            time.sleep(2)
            view = View(source.request_status(), first, time.monotonic() - began)
        for load in loads:
            load.join()
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True, color_system="truecolor"
    )
    console.print(view.render(WIDTH, HEIGHT))
    target.write_text(console.export_svg(title="kproc top", code_format=FORMAT, unique_id="top"), encoding="utf-8")


if __name__ == "__main__":
    main()
