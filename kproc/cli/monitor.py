"""`kproc monitor`: prints the requests of a running broker's clients when they are answered, one per line."""

from __future__ import annotations

import secrets
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Format, OutputFormat, chosen_names
from kproc.cli.completion import complete_topics
from kproc.cli.connection import connect
from kproc.cli.failure import Failure
from kproc.cli.human import camel_case, format_bytes
from kproc.cli.lines import print_note, print_text, require_reader
from kproc.common.printable import printable, printable_json

if TYPE_CHECKING:
    from kproc.client import Client

_POLL_S: Final = 0.1
_NAME_BYTES: Final = 8
_SECONDS_MAX: Final = 86_400.0
_ANONYMOUS: Final = "User:ANONYMOUS"
_OUTCOMES: Final = {"Send": "ok", "NoOp": "no answer", "CloseConnection": "closed"}
_HEADER: Final = "TIME API TOPICS RESULT DURATION REQUEST>RESPONSE CLIENT [USER] ADDRESS"
_INDENT: Final = " " * len("00:00:00.000 ")


ApiFilter = Annotated[
    list[str] | None,
    typer.Option("--api", metavar="NAME", help="Only this API, such as Produce; may be repeated."),
]
ClientFilter = Annotated[
    str | None,
    typer.Option("--client", metavar="ID", help="Only this client id. A * at the end stands for any rest."),
]
UserFilter = Annotated[
    str | None,
    typer.Option("--user", metavar="NAME", help="Only this user, alice or User:alice, or a prefix with *."),
]
TopicFilter = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Only requests that name this topic, or a prefix with *.",
        autocompletion=complete_topics,
    ),
]
RequestCount = Annotated[
    int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after this many requests.")
]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", metavar="S", min=0.1, max=_SECONDS_MAX, help="Stop after this time."),
]


def monitor(
    api: ApiFilter = None,
    client: ClientFilter = None,
    user: UserFilter = None,
    topic: TopicFilter = None,
    count: RequestCount = None,
    seconds: Seconds = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Print each request when it is answered: time, API, topics, result, duration, sizes, client. Ctrl-C ends it.

    A line shows the sizes of request and response. With --format json, each line is an object. The broker handles
    Produce and Fetch more slowly while a monitor runs. If there are more than some thousand requests a second, lines
    are left out, and a message says how many. It needs ALTER on the cluster where access is controlled, and a listener
    of the same host. On the control listener it shows the requests of all other listeners, even if a Handler hangs.
    """
    filters = {
        "apis": chosen_names("--api", api, api_names()),
        "client": client,
        "user": user,
        "topic": topic,
    }
    with connect(bootstrap) as connection:
        _follow(connection, filters, count, seconds, output)


def api_names() -> list[str]:
    """Return the names of all APIs that --api accepts."""
    from kproc.wire.header import ApiKey

    return [camel_case(key.name) for key in ApiKey]


def _follow(
    connection: Client, filters: dict[str, Any], count: int | None, seconds: float | None, output: Format
) -> None:
    from kproc.client import ClientError

    watch = {"watch": secrets.token_hex(_NAME_BYTES), **filters}
    left = count if count is not None else sys.maxsize
    end_s = time.monotonic() + (seconds if seconds is not None else float("inf"))
    silent = _report_silent(connection.operate("monitor", **watch), [])
    if sys.stdout.isatty() and sys.stderr.isatty():
        print_note("kproc: requests from now on; Ctrl-C ends")
        if output is not Format.JSON:
            print_note(_HEADER)
    while left > 0 and time.monotonic() < end_s:
        time.sleep(max(0.0, min(_POLL_S, end_s - time.monotonic())))
        answer = connection.operate("monitor", **watch)
        rows = answer.rows("lines")
        for row in rows[:left]:
            _print(row, output)
        sys.stdout.flush()
        require_reader()
        left -= len(rows)
        silent = _report_silent(answer, silent)
        if answer["lost"]:
            print_note(
                f"kproc: {answer['lost']} more requests came too fast to be shown; a filter selects fewer"
            )
    # A broker allows few monitors at a time. Without this call, this one would count for some more seconds, as it does
    # after Ctrl-C.
    with suppress(ClientError):
        connection.operate("monitor", **watch, is_last=True)


def _report_silent(answer: dict[str, Any], before: list[int]) -> list[int]:
    """Print which Handlers do not respond if they differ from `before`, or that all respond again.

    Return the indexes of Handlers that do not respond. Only the control listener reports them. At another listener the
    response waits for all Handlers.
    """
    silent: list[int] = answer.get("silent", [])
    if silent and silent != before:
        names = ", ".join(f"Handler {index}" for index in silent)
        print_note(f"kproc: no answer from {names}: the requests of its clients are missing")
    elif before and not silent:
        print_note("kproc: all Handlers answer again")
    return silent


def _print(row: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        import orjson

        sys.stdout.buffer.write(printable_json(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)))
        return
    try:
        line = format_row(row)
    except (KeyError, TypeError, ValueError, ArithmeticError, OSError) as error:
        # A program that is no kproc broker can answer anything.
        raise Failure(f"the broker's answer has a line that cannot be shown: {error!r}") from error
    print_text(line, indent=_INDENT)


def format_row(row: dict[str, Any]) -> str:
    """Format a request as one line."""
    clock = time.strftime("%H:%M:%S", time.localtime(row["time_ms"] / 1000))
    names = [*row["topics"], *row["others"]]
    about = ",".join(names) + (f",+{row['more']}" if row["more"] else "")
    result = row["error"] or _OUTCOMES.get(row["outcome"], row["outcome"])
    words = [
        f"{clock}.{row['time_ms'] % 1000:03d}",
        row["api"],
        about or "-",
        result,
        # A request of a login has neither a duration nor sizes.
        f"{row['took_us'] / 1000:.2f}ms" if row["request_bytes"] else "-",
        # Remove the blank before the unit, because blanks separate the fields of a line.
        ">".join(format_bytes(row[key]).replace(" ", "") for key in ("request_bytes", "response_bytes"))
        if row["request_bytes"]
        else "-",
        row["client"] or "-",
    ]
    # Omit User:ANONYMOUS, which every client without a login has.
    if row["user"] not in (_ANONYMOUS, ""):
        words.append(row["user"])
    words.append(row["address"])
    return printable(" ".join(words))
