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
from rich.text import Text

import kproc
from kproc.cli.top import all_pages
from kproc.cli.top_links import Links
from kproc.cli.top_page import Reading
from kproc.cli.top_screen import Mode, View, render
from kproc.tools.load.run import run_load

WIDTH, HEIGHT = 100, 16
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
        links, pages = Links(broker.bootstrap), all_pages()
        view = View(pages[0], Reading(pages[0].open(links)), pages[0].columns[0])
        view.reading.read([])
        time.sleep(2)
        view.snapshot = view.reading.read([])
        links.close()
        for load in loads:
            load.join()
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True, color_system="truecolor"
    )
    for line in render(view, pages, Mode(interval_s=2.0), WIDTH, HEIGHT).lines:
        console.print(Text.assemble(*line))
    target.write_text(console.export_svg(title="kproc top", code_format=FORMAT, unique_id="top"), encoding="utf-8")


if __name__ == "__main__":
    main()
