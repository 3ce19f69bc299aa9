"""What the commands share: the bootstrap option, one-line errors, tables and JSON on the screen."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.failure import DEFAULT_PORT as DEFAULT_PORT
from kproc.cli.failure import Failure as Failure
from kproc.cli.failure import usage_error as usage_error
from kproc.cli.lines import print_block, print_line
from kproc.common.printable import printable, printable_json

if TYPE_CHECKING:
    from kproc.client import Client
    from kproc.client.security.settings import ClientSecurity


class Format(StrEnum):
    """How a command shows its answer."""

    TABLE = "table"
    JSON = "json"


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", metavar="HOST:PORT", envvar="KPROC_BOOTSTRAP", help="The broker to talk to."
    ),
]
_BROKERS = {"bootstrap", "from_broker"}  # What commands call the broker that they connect to.
COMMAND_CONFIG_VARIABLE = "KPROC_COMMAND_CONFIG"
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="How to encrypt and log in, by Kafka's names: security.protocol, sasl.*, ssl.*. "
        f"[env var: {COMMAND_CONFIG_VARIABLE}]",
    ),
]
OutputFormat = Annotated[Format, typer.Option("--format", "-f", help="How to show the answer.")]
_CUT_LEAST = 10  # Names are never shortened below this length.
_CUT_READABLE = 20
# A description of 100,000 partitions is about 10 MB. confluent-kafka reads records, not this client.
_ANSWER_BYTES_MAX = 256 << 20
DEFAULT_BOOTSTRAP = f"127.0.0.1:{DEFAULT_PORT}"


def use_command_config(path: Path | None) -> None:
    """What `--command-config` names, for all that this command connects to; None: what the environment names."""
    _command_config.path = path


def command_config() -> Path | None:
    """The file that `--command-config` names; None where it is not given."""
    return _command_config.path


def command_config_in_force() -> Path | None:
    """That, or what the environment names."""
    return _command_config.in_force()


class _CommandConfig:
    """The file of this command, read when something connects."""

    path: Path | None = None

    def in_force(self) -> Path | None:
        named = os.environ.get(COMMAND_CONFIG_VARIABLE)
        return self.path or (Path(named) if named else None)

    def properties(self) -> dict[str, str]:
        named = self.in_force()
        if named is None:
            return {}
        from kproc.client.security.settings import read_client_config

        return read_client_config(named, os.environ.get)


_command_config = _CommandConfig()


def client_properties() -> dict[str, str]:
    """What the file of `--command-config` holds; nothing where there is none."""
    return _command_config.properties()


def client_security() -> ClientSecurity | None:
    """How to encrypt and log in; None: neither."""
    properties = client_properties()
    if not properties:
        return None
    from kproc.client.security.settings import parse_client_security

    return parse_client_security(properties)


def librdkafka_security() -> Mapping[str, Any]:
    """The same for confluent_kafka."""
    security = client_security()
    if security is None:
        return {}
    from kproc.client.security.librdkafka import librdkafka_settings

    return librdkafka_settings(security)


def connect(bootstrap: str, *, timeout_ms: int = 10_000) -> Client:
    """A connection to the first broker of a bootstrap list that answers; the last refusal if none does."""
    from kproc.broker.config.listeners import split_address
    from kproc.broker.config.values import ConfigError
    from kproc.client import Client, ConnectionFailed

    try:
        addresses = [split_address(item, default_port=DEFAULT_PORT) for item in bootstrap.split(",")]
    except ConfigError as error:
        usage_error(f"--bootstrap: {error}")
    security = client_security()
    for host, port in addresses[:-1]:
        try:
            return _introduced(Client.connect(host, port, timeout_ms=timeout_ms, security=security))
        except ConnectionFailed:
            continue  # The next one may be up; if none is, the last one's reason is shown.
    host, port = addresses[-1]
    return _introduced(Client.connect(host, port, timeout_ms=timeout_ms, security=security))


def _introduced(client: Client) -> Client:
    """So that `kproc clients` knows its own."""
    from kproc import __version__

    # Bounded, because any user can listen at a free port and make root's command fill the memory.
    client.answer_bytes_max = _ANSWER_BYTES_MAX
    client.introduce("kproc", __version__)
    return client


def connect_for_records(bootstrap: str) -> Client:
    """As `connect`, but a control listener is refused: clients of records would try there for ever."""
    from kproc.client import ClientError
    from kproc.wire.header import ApiKey

    client = connect(bootstrap)
    if ApiKey.PRODUCE in client.api_versions():
        return client
    try:
        listeners = client.operate("status")["listeners"]
    except ClientError:
        raise Failure(f"{client.address} serves no records") from None
    finally:
        client.close()
    by = ", ".join(str(row["advertised"]) for row in listeners.values())
    raise Failure(
        f"{client.address} is a control listener, for status, top, scale, topic and config; records go by {by}"
    )


def with_command_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the option --command-config, if it connects to a broker, which its options tell."""
    parameters = inspect.signature(command, eval_str=True).parameters
    if not _BROKERS & parameters.keys():
        return command

    @functools.wraps(command)
    def run(*arguments: Any, command_config: Path | None = None, **options: Any) -> Any:
        use_command_config(command_config)
        return command(*arguments, **options)

    option = inspect.Parameter(
        "command_config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CommandConfig
    )
    everything = (*parameters.values(), option)
    run.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in everything}
    return run


def topic_metadata(client: Client, names: list[str] | None) -> list[dict[str, Any]]:
    """Topics as the broker lists them, all of them for None; asking never creates one."""
    from kproc.wire.header import ApiKey

    fields = {
        "topics": None if names is None else [{"topic_id": None, "name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    topics: list[dict[str, Any]] = client.call_latest(ApiKey.METADATA, fields)["topics"]
    return topics


def print_json(value: Any) -> None:
    """One indented JSON document; keys in the order in which they were built."""
    import orjson

    print_block(printable_json(orjson.dumps(value, option=orjson.OPT_INDENT_2)).decode() + "\n")


def print_done(
    rows: Sequence[dict[str, Any]], words: str, output: Format, refusals: Sequence[str] = ()
) -> None:
    """Say what was done, a line for each by the template `words`; then fail with what was refused, if anything."""
    if output is Format.JSON:
        print_json(rows)
    else:
        for row in rows:
            print_line(words.format_map(row))
    if refusals:
        raise Failure("; ".join(refusals))


def print_facts(facts: Iterable[str]) -> None:
    """Write facts separated by two blanks; on a terminal as many in a line as fit."""
    facts = [printable(fact) for fact in facts]
    if not sys.stdout.isatty():
        print_line("  ".join(facts))
        return
    width = shutil.get_terminal_size().columns
    lines = [facts[0]]
    for fact in facts[1:]:
        if len(lines[-1]) + 2 + len(fact) <= width:
            lines[-1] += f"  {fact}"
        else:
            lines.append(fact)
    for line in lines:
        print_line(line)


def print_text(text: str, indent: str = "") -> None:
    """A sentence; on a terminal broken between words, its further lines begin with `indent`."""
    text = printable(text)
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)
    print_block(f"{text}\n")


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    drop: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> None:
    """Columns as wide as their longest cell, two blanks between, numbers to the right.

    On a terminal that is too narrow the columns of `drop` are left out, the first ones first, and a line says so; then
    long cells of the columns of `cut` lose their middle. A name that is longer than others drops no column for that.
    Whoever reads from a pipe gets all of them.
    """
    table = [[_cell(value) for value in row] for row in rows]
    left_out: list[str] = []
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        header, table, left_out = _narrowed(list(header), table, drop, width, cut)
        _cut(header, table, cut, width)
    numeric = [all(_is_number(row[column]) for row in table) for column in range(len(header))]
    widths = _widths(header, table)
    for line in (header, *table):
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        print_line("  ".join(cells).rstrip())
    if left_out:
        print_text(f"(no room for {', '.join(left_out)})")


def print_count(count: int, what: str) -> None:
    """How many rows a table has, on a terminal: whoever reads from a pipe counts for itself."""
    if sys.stdout.isatty():
        print_line(f"({count} {what}{'' if count == 1 else 's'})")


def fits(header: Sequence[str], rows: Iterable[Sequence[object]], cut: Sequence[str]) -> bool:
    """Whether a table leaves the columns of `cut` readable on this terminal; true where there is none."""
    table = [[_cell(value) for value in row] for row in rows]
    width = sum(_widths(header, table, cut)) + 2 * (len(header) - 1)
    return not sys.stdout.isatty() or width <= shutil.get_terminal_size().columns


def _narrowed(
    header: list[str], table: list[list[str]], drop: Sequence[str], width: int, cut: Sequence[str] = ()
) -> tuple[list[str], list[list[str]], list[str]]:
    """Without as many columns of `drop` as it takes, and their names; those of `cut` count as far as readable."""
    left_out: list[str] = []
    for name in (each for each in drop if each in header):
        if sum(_widths(header, table, cut)) + 2 * (len(header) - 1) <= width:
            break
        at = header.index(name)
        header, table = _without(header, at), [_without(row, at) for row in table]
        left_out.append(name)
    return header, table, left_out


def _cut(header: Sequence[str], table: list[list[str]], names: Sequence[str], width: int) -> None:
    """Shorten the longest cells, in place: sentences to their first words, names by their middle, which tells least.

    The columns share what room there is: the widest is shortened first, until the next one is as wide.
    """
    widths = _widths(header, table)
    columns = [header.index(name) for name in names if name in header]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0:
        at = max(columns, key=lambda each: widths[each], default=None)
        if at is None or widths[at] <= max(len(header[at]), _CUT_LEAST):
            break
        widths[at] -= 1
        excess -= 1
    for at in columns:
        for row in table:
            if len(row[at]) > widths[at]:
                row[at] = _shortened(row[at], widths[at])


def _shortened(cell: str, room: int) -> str:
    if " " in cell:
        words = textwrap.shorten(cell, room, placeholder="", break_long_words=False, break_on_hyphens=False)
        if len(words) >= room // 2:  # Less is a name with blanks in it.
            return words.rstrip(":,")
    head = (room - 3 + 1) // 2
    return f"{cell[:head]}...{cell[head + 3 - room :]}"


def _widths(header: Sequence[str], table: list[list[str]], cut: Sequence[str] = ()) -> list[int]:
    """The width of each column; of those of `cut` not more than it takes to read them."""
    columns = zip(header, *table, strict=True)
    widths = [max(len(cell) for cell in column) for column in columns]
    return [
        min(width, max(len(name), _CUT_READABLE)) if name in cut else width
        for name, width in zip(header, widths, strict=True)
    ]


def _without(cells: list[str], at: int) -> list[str]:
    return [*cells[:at], *cells[at + 1 :]]


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.removeprefix("-").replace(".", "", 1).isdecimal()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return printable(",".join(str(item) for item in value))
    return printable(str(value))


def pairs(option: str, items: Iterable[str]) -> list[tuple[str, str]]:
    """`name=value` arguments as pairs."""
    answer = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            usage_error(f"{option} {item!r}: expected name=value")
        answer.append((name, value))
    return answer
