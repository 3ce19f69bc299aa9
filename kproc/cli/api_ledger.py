"""`kproc api`: every API that Apache Kafka advertises, whether this kproc serves it, and where it differs."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer

from kproc.cli.common import Format, OutputFormat, print_json
from kproc.cli.lines import print_block, print_line
from kproc.cli.tables import print_table


def api(
    output: OutputFormat = Format.TABLE,
    missing: Annotated[
        bool, typer.Option("--missing", help="Also those that Kafka does not advertise to clients.")
    ] = False,
) -> None:
    """Show the APIs of Apache Kafka 4.4, and those that kproc serves with their versions. Needs no broker."""
    rows = _rows(missing=missing)
    if output is Format.JSON:
        print_json(rows)
        return
    columns = ("KEY", "API", "VERSIONS", "STATUS")
    print_table(columns, [(row["key"], row["api"], row["versions"], row["status"]) for row in rows])
    print_line()
    print_line("Not served:")
    unserved: dict[str, list[str]] = {}
    for row in rows:
        if row["reason"]:
            unserved.setdefault(f"{row['status']}, {row['reason']}", []).append(row["api"])
    for reason, names in unserved.items():
        _print_note(f"{reason}: {', '.join(names)}")
    print_line()
    print_line("Where it differs from Apache Kafka 4.4:")
    for row in rows:
        if row["differences"]:
            _print_note(f"{row['api']}: {row['differences']}")


def _rows(*, missing: bool) -> list[dict[str, Any]]:
    from kproc.broker.api import load_all
    from kproc.broker.request.registry import APIS
    from kproc.cli.unserved_apis import BETWEEN_BROKERS, UNSERVED, Status
    from kproc.wire.header import ApiKey

    load_all()
    rows = []
    for key in sorted(ApiKey):
        entry = APIS.get(key)
        if entry is None and key not in UNSERVED and not missing:
            continue
        unserved = UNSERVED.get(key, BETWEEN_BROKERS)
        status, reason = unserved if entry is None else (Status.SERVED, None)
        rows.append(
            {
                "key": int(key),
                "api": camel_case(key.name),
                "versions": f"{entry.advertised_lo}-{entry.hi}" if entry is not None else None,
                "status": str(status),
                "reason": reason,
                "differences": entry.differences if entry is not None else None,
            }
        )
    return rows


def _print_note(text: str) -> None:
    print_block(textwrap.fill(text, 78, initial_indent="- ", subsequent_indent="  ") + "\n")


def camel_case(name: str) -> str:
    """Format the name of an API as Kafka does: LIST_OFFSETS becomes ListOffsets."""
    return "".join(word.capitalize() for word in name.split("_"))
