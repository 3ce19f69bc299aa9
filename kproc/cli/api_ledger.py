"""`kproc api`: lists every API that Apache Kafka advertises, with kproc's versions and the differences."""

from __future__ import annotations

import textwrap
from typing import Annotated

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
    from kproc.cli.api_rows import api_rows

    rows = api_rows(missing=missing)
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
    print_line("Where kproc's API differs from that of Apache Kafka 4.4:")
    for row in rows:
        if row["differences"]:
            _print_note(f"{row['api']}: {row['differences']}")


def _print_note(text: str) -> None:
    print_block(textwrap.fill(text, 78, initial_indent="- ", subsequent_indent="  ") + "\n")
