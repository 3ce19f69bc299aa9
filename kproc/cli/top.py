"""`kproc top`: watches a broker in pages: processes, topics, groups, connections, requests.

top_page.py has the data of a page, top_screen.py renders it, top_terminal.py controls the terminal. This module has the
options and the main loop. A thread sends the requests to the broker, one at a time, so that keys work while the broker
does not respond.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Format, OutputFormat, print_json, usage_error
from kproc.cli.failure import Failure
from kproc.cli.lines import print_line, print_note, print_text

if TYPE_CHECKING:
    from kproc.cli.top_links import Links
    from kproc.cli.top_page import PageSnapshot, TopPage
    from kproc.cli.top_screen import View

_INTERVAL_S: Final = 2.0
_ONCE_S: Final = 1.0
_FIRST_S: Final = 0.5
"""Time until the second reading, because there is no rate before it."""
_RETRY_S: Final = 30.0
"""Time until the next try after an answer that a retry hardly changes. Each denied request is a line in a log."""
_PATIENCE_S: Final = 1.0
"""Time that a reading of another page may still take. A hung broker must not keep the user from the processes."""
_IDLE_S: Final = 3600.0


class PageName(StrEnum):
    """A page of `kproc top`."""

    PROCESSES = "processes"
    TOPICS = "topics"
    GROUPS = "groups"
    CONNECTIONS = "connections"
    REQUESTS = "requests"


Page = Annotated[PageName, typer.Option("--page", help="The page to begin with.")]
SortColumn = Annotated[
    str | None, typer.Option("--sort", metavar="NAME", help="Column to sort by, such as LAG or IN/S.")
]
Reverse = Annotated[bool, typer.Option("--reverse", help="Reverse the order.")]
WantedText = Annotated[str, typer.Option("--filter", metavar="TEXT", help="Show only rows with this text.")]
Interval = Annotated[
    float | None,
    typer.Option(
        "--interval",
        "-i",
        metavar="S",
        min=0.2,
        max=3600,
        help="Seconds between two updates. [default: 2; with --once: 1]",
        show_default=False,
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Print one update of the page, on any output.")]


@dataclass(frozen=True)
class RowOptions:
    """The options --sort and --filter for the rows of the page that is shown first."""

    sort: SortColumn = None
    is_reversed: Reverse = False
    wanted: WantedText = ""

    def apply(self, view: View) -> None:
        """Use the options in a page. Raise a usage error if the page has no such column."""
        view.is_reversed, view.wanted = self.is_reversed, self.wanted
        if self.sort is None:
            return
        column = view.page.column(self.sort)
        if column is None:
            titles = ", ".join(each.title for each in view.page.columns)
            usage_error(f"--sort {self.sort}: the page {view.page.name} has the columns {titles}")
        view.column = column


def top(
    page: Page = PageName.PROCESSES,
    rows: RowOptions = RowOptions(),
    interval: Interval = None,
    once: Once = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Watch a broker: processes, topics, groups, connections and requests, a page each.

    \b
    1-5, Tab       another page
    < > (arrows)   choose the column to sort by
    r              reverse the order
    /              show only rows with a text; Esc shows all
    up, down       scroll
    space          pause
    ?              help with the columns of the page
    q              quit

    A page is read only while it is shown. The top right corner shows how long the broker took for it, and how often it
    is read. Readings that take long come less often. A dash is a figure
    that is not known, or not yet. Topics and groups are shown of any broker, the other pages of a kproc broker on this
    host. Without a terminal, or with --format json, one update is printed.
    """
    from kproc.cli.top_links import Links

    with closing(Links(bootstrap)) as links:
        views = _open_views(links)
        view = next(each for each in views if each.page.name == page)
        rows.apply(view)
        if once or output is Format.JSON or not _has_terminal():
            if not once and output is not Format.JSON:
                print_note("kproc: there is no terminal to draw on, so this is one update")
            _print_once(view, interval or _ONCE_S, output)
        else:
            _Loop(links, views, views.index(view), interval or _INTERVAL_S).run()


def _open_views(links: Links) -> list[View]:
    from kproc.cli.top_page import Reading
    from kproc.cli.top_screen import View

    return [
        View(each, Reading(each.open(links)), each.column(each.sort) or each.columns[0])
        for each in all_pages()
    ]


def all_pages() -> list[TopPage]:
    from kproc.cli.top_connections import CONNECTIONS
    from kproc.cli.top_groups import GROUPS
    from kproc.cli.top_status import PROCESSES, REQUESTS
    from kproc.cli.top_topics import TOPICS

    return [PROCESSES, TOPICS, GROUPS, CONNECTIONS, REQUESTS]


def _has_terminal() -> bool:
    import os
    import sys

    # TERM=dumb, as in an editor's shell, shows escape sequences as text.
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _print_once(view: View, interval_s: float, output: Format) -> None:
    """Print one update: the lines above the table, and its rows, with rates over `interval_s`. JSON has all rows."""
    import shutil
    import sys

    from kproc.cli.top_screen import left_out_note, plain, table_lines

    view.reading.read([])
    time.sleep(interval_s)
    view.snapshot = view.reading.read(None, has_survey=True)
    if output is Format.JSON:
        values = {"interval_s": interval_s, **view.snapshot.values, "rows": view.rows()}
        print_json({"page": view.page.name, **values})
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    rows, idle = view.active_rows()
    for line in view.snapshot.head:
        print_text(plain(line))
    for line in table_lines(view.page, None, rows, width):
        print_line(plain(line))
    if note := left_out_note(view, rows, idle, width):
        print_text(note)


@dataclass
class _ReadingResult:
    """The result of reading a page: its data, or the error."""

    view: View
    snapshot: PageSnapshot | None = None
    error: str | None = None
    retry_s: float = 0.0
    cause: Exception | None = None
    """The exception. Without an `error` it is a bug of kproc."""


@dataclass
class _PendingReading:
    """A reading in progress, with the connections that it uses."""

    view: View
    links: Links
    began_s: float


class _Loop:
    """The main loop: shows the pages on a terminal until the user quits."""

    def __init__(self, links: Links, views: list[View], at: int, interval_s: float) -> None:
        from kproc.cli.top_screen import Mode

        self._links = links
        self._views = views
        self._at = at
        self._mode = Mode(interval_s)
        self._task: _PendingReading | None = None
        self._answers: deque[tuple[_PendingReading, _ReadingResult]] = deque()
        self._names: list[str] = []
        self._capacity = 1

    def run(self) -> None:
        """Show pages until the user quits. Raise ClientError if the broker cannot be reached at the start."""
        from kproc.cli.top_terminal import Terminal, TerminalClosed
        from kproc.client import ConnectionFailed

        # Connect before the alternate screen is opened, so that an error is a usual message and not an empty page.
        try:
            _ = self._links.client
        except ConnectionFailed:
            # The broker accepts no connection, but its supervisor may still answer. Show the page then.
            first = self._read(self._view, [])
            if first.snapshot is None:
                raise
            self._apply(first)
        try:
            with Terminal() as terminal:
                while True:
                    self._draw(terminal)
                    self._start_reading(terminal.wake)
                    for key in terminal.wait(self._wait_s()):
                        if not self.press(key):
                            return
                    self._apply_answers()
        except TerminalClosed:
            return

    @property
    def _view(self) -> View:
        return self._views[self._at]

    # -- reading

    def _wait_s(self) -> float:
        if self._task is not None and self._task.view is not self._view:
            return max(0.0, self._task.began_s + _PATIENCE_S - time.monotonic())
        if self._task is not None or self._mode.is_paused:
            return _IDLE_S
        return max(0.0, self._view.due_s - time.monotonic())

    def _start_reading(self, wake: Callable[[], None]) -> None:
        now_s = time.monotonic()
        task = self._task
        if task is not None and task.view is not self._view and now_s >= task.began_s + _PATIENCE_S:
            self._task = None
            self._renew()
        if self._task is not None or self._mode.is_paused or now_s < self._view.due_s:
            return
        task = self._task = _PendingReading(self._view, self._links, now_s)
        view, names = self._view, list(self._names)

        def work() -> None:
            self._answers.append((task, self._read(view, names)))
            wake()

        # A daemon thread, so that the command can exit while the broker does not respond.
        threading.Thread(target=work, name="top-reader", daemon=True).start()

    def _apply_answers(self) -> None:
        while self._answers:
            task, answer = self._answers.popleft()
            if task is self._task:
                self._task = None
                self._apply(answer)
            else:
                task.links.close()

    def _renew(self) -> None:
        """Open new connections, and discard earlier counters, which can be of an earlier run of the broker."""
        from kproc.cli.top_links import Links
        from kproc.cli.top_page import Reading

        self._links = Links(self._links.bootstrap)
        for view in self._views:
            view.reading = Reading(view.page.open(self._links))
            view.has_rates = False

    def _read(self, view: View, names: Sequence[str]) -> _ReadingResult:
        """Read a page in the reader thread.

        Return an error in the result, so that the main thread can show or raise it.
        """
        from kproc.cli.top_links import NotOffered
        from kproc.client import AnswerTimeout, ClientError, ConnectionFailed, ConnectionLost, failure_text
        from kproc.common.errors import KafkaError

        try:
            return _ReadingResult(view, view.reading.read(names))
        except NotOffered as error:
            return _ReadingResult(view, error=str(error), retry_s=_IDLE_S)
        except (AnswerTimeout, ConnectionFailed, ConnectionLost) as error:
            # The client's message for a lost connection says that the peer may not be a broker. After a successful
            # reading use a message without that.
            is_known = isinstance(error, ConnectionLost) and view.snapshot is not None
            reason = f"{self._links.bootstrap} has closed the connection" if is_known else str(error)
            return _ReadingResult(view, error=f"{reason}; trying again", cause=error)
        except (ClientError, Failure, KafkaError) as error:
            text = failure_text(error) if isinstance(error, KafkaError) else str(error)
            return _ReadingResult(view, error=text, retry_s=_RETRY_S, cause=error)
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            return _ReadingResult(view, cause=error)

    def _apply(self, answer: _ReadingResult) -> None:
        view = answer.view
        if answer.cause is not None and answer.error is None:
            raise answer.cause
        view.error = answer.error
        wait_s = max(self._mode.interval_s, answer.retry_s)
        if answer.snapshot is not None:
            view.snapshot = answer.snapshot
            wait_s = max(wait_s, view.reading.update_pace.rest_s)
            if not view.has_rates:
                wait_s = min(wait_s, _FIRST_S)
            view.has_rates = True
        else:
            self._links.close()
            self._renew()
        view.due_s = time.monotonic() + wait_s

    def _draw(self, terminal: Any) -> None:
        from kproc.cli.top_screen import ansi, render

        pages = [view.page for view in self._views]
        screen = render(self._view, pages, self._mode, *terminal.size)
        self._names, self._capacity = screen.names, max(1, screen.capacity)
        self._view.first = screen.first
        terminal.draw([ansi(line, has_colour=terminal.has_colour) for line in screen.lines])

    # -- keys

    def press(self, key: str) -> bool:
        """Handle one key. Return False if the user quits."""
        if self._mode.is_typing:
            self._type(key)
        elif self._mode.is_help:
            if key in ("q", "Q", "escape", "?", "h", "enter", " "):
                self._set(is_help=False)
        elif key in ("q", "Q"):
            return False
        elif key in ("?", "h"):
            self._set(is_help=True)
        elif key == " ":
            self._set(is_paused=not self._mode.is_paused)
        elif key == "/":
            self._view.wanted = ""
            self._set(is_typing=True)
        elif key == "escape":
            self._view.wanted = ""
        elif key in ("tab", "backtab"):
            self._show((self._at + (1 if key == "tab" else -1)) % len(self._views))
        elif key.isdecimal() and 1 <= int(key) <= len(self._views):
            self._show(int(key) - 1)
        elif key in ("r", "R"):
            self._view.is_reversed = not self._view.is_reversed
        elif key in ("<", ",", "left", ">", ".", "right"):
            self._sort_by_neighbour(-1 if key in ("<", ",", "left") else 1)
        else:
            self._scroll(key)
        return True

    def _set(self, **changes: bool) -> None:
        self._mode = self._mode._replace(**changes)

    def _show(self, at: int) -> None:
        self._at = at
        self._names = []
        # Rates need two readings. Take the second one soon after the first, because the last one may be long ago.
        view = self._view
        view.has_rates = False
        view.due_s = min(view.due_s, time.monotonic())

    def _type(self, key: str) -> None:
        view = self._view
        if key == "escape":
            view.wanted = ""
        elif key == "backspace":
            view.wanted = view.wanted[:-1]
        elif len(key) == 1 and key.isprintable():
            view.wanted += key
        if key in ("escape", "enter"):
            self._set(is_typing=False)

    def _sort_by_neighbour(self, step: int) -> None:
        view = self._view
        columns = view.page.columns
        view.column = columns[(columns.index(view.column) + step) % len(columns)]
        view.is_reversed = False

    def _scroll(self, key: str) -> None:
        steps = {
            "up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self._capacity, "pagedown": self._capacity,
            "home": -(1 << 30), "end": 1 << 30,
        }  # fmt: skip
        # render() limits the first row to the existing ones.
        self._view.first = max(0, self._view.first + steps.get(key, 0))
