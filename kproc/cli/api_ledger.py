"""`kproc api`: which of Kafka's APIs this kproc serves, in which versions, and where it differs."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from kproc.cli.common import Format, OutputFormat, print_json
from kproc.cli.lines import print_block, print_line
from kproc.cli.tables import print_table


def api(
    output: OutputFormat = Format.TABLE,
    missing: Annotated[bool, typer.Option("--missing", help="Also those that are not served.")] = False,
) -> None:
    """Show the served APIs and their versions. Needs no broker."""
    from kproc.broker.api import load_all
    from kproc.broker.request.registry import APIS
    from kproc.wire.header import ApiKey

    load_all()
    rows = []
    for key in sorted(ApiKey):
        entry = APIS.get(key)
        if entry is None and not missing:
            continue
        rows.append(
            {
                "key": int(key),
                "api": camel_case(key.name),
                "versions": f"{entry.advertised_lo}-{entry.hi}" if entry is not None else None,
                "differences": entry.differences if entry is not None else None,
            }
        )
    if output is Format.JSON:
        print_json(rows)
        return
    print_table(("KEY", "API", "VERSIONS"), [(row["key"], row["api"], row["versions"]) for row in rows])
    print_line()
    print_line("Where it differs from Apache Kafka 4.3:")
    for row in rows:
        if row["differences"]:
            text = f"{row['api']}: {row['differences']}"
            print_block(textwrap.fill(text, 100, initial_indent="- ", subsequent_indent="  ") + "\n")


def camel_case(name: str) -> str:
    """Format the name of an API as Kafka does: LIST_OFFSETS becomes ListOffsets."""
    return "".join(word.capitalize() for word in name.split("_"))
