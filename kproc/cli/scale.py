"""`kproc scale` changes the number of a running broker's processes.

`kproc rebalance` moves connections between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    Bootstrap,
    Format,
    OutputFormat,
    print_done,
    print_json,
    usage_error,
)
from kproc.cli.config_requests import broker_settings
from kproc.cli.connection import connect
from kproc.cli.consent import DryRun
from kproc.cli.failure import Failure
from kproc.cli.lines import print_line
from kproc.cli.tables import print_table

if TYPE_CHECKING:
    from kproc.client import Client

_SETTINGS: Final = {"processors": "num.network.threads", "handlers": "num.io.threads"}


Processors = Annotated[
    int | None,
    typer.Option(
        "--processors",
        metavar="N",
        min=1,
        max=INT_MAX,
        help="Number of Processors, which own client connections.",
    ),
]
Handlers = Annotated[
    int | None,
    typer.Option(
        "--handlers",
        metavar="M",
        min=1,
        max=INT_MAX,
        help="Number of Handlers, which own partitions.",
    ),
]


def scale(
    processors: Processors = None,
    handlers: Handlers = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Change the number of processes of a running broker; no connection is dropped. Kept over a restart."""
    if processors is None and handlers is None:
        usage_error("scale: name --processors, --handlers or both")
    wanted = {"processors": processors, "handlers": handlers}
    requested = {name: count for name, count in wanted.items() if count is not None}
    with connect(bootstrap) as client:
        if dry_run:
            _print_plan(client, requested, output)
            return
        answer = client.scale(**requested)
    if output is Format.JSON:
        print_json(answer)
        return
    for step in answer["steps"]:
        print_line(f"{step['what']}: {step['from']} -> {step['to']} in {step['took_ms']} ms")
    counts = answer["counts"]
    print_line(f"processors={counts['processors']} handlers={counts['handlers']}")


def _print_plan(client: Client, counts: dict[str, int], output: Format) -> None:
    """Print the present and the wanted number of processes. Raise a Failure for a change that cannot be made.

    No request validates the change. The status request fails at Kafka, and its response has the transport.
    """
    from kproc.broker.cluster.role_counts import role_count_max

    if (transport := client.operate("status")["transport"]) != "process":
        raise Failure(
            f"the number of roles changes at the next start only: they share a process (kproc.transport={transport})"
        )
    most = role_count_max()  # The broker runs on this host, because it sends its status to no other one.
    for name, count in counts.items():
        if count > most:
            raise Failure(f"{name} must be a number from 1 to {most}, not {count}")
    present = broker_settings(client, [_SETTINGS[name] for name in counts])
    rows = [
        {
            "result": "would change",
            "what": name,
            "from": int(present[_SETTINGS[name]]),
            "to": count,
        }
        for name, count in counts.items()
    ]
    print_done(rows, "{result} {what}: {from} -> {to}", output)


def rebalance(
    dry_run: DryRun = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE
) -> None:
    """Move connections from busy processes to idle ones; none is dropped. [kproc.rebalance=auto does it by itself]"""
    with connect(bootstrap) as client:
        answer = client.operate("plan-rebalance" if dry_run else "rebalance")
    if output is Format.JSON:
        print_json(answer)
    elif not (moves := answer.rows("moves")):
        print_line("nothing to move: the connections are balanced")
    else:
        print_table(
            ["FROM", "TO", "CONNECTIONS"],
            [[move["from"], move["to"], move["connections"]] for move in moves],
        )
