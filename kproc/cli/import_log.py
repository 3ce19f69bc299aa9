"""`kproc import-log`: imports another broker's files, or directories that were set aside, into existing topics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kproc.cli.common import Format, OutputFormat, print_done
from kproc.cli.consent import DryRun

Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="FROM",
        help="Directories of partitions, or data directories, of which all partitions are imported.",
    ),
]
Data = Annotated[
    Path,
    typer.Option(
        "--data", metavar="DIR", help="Data directory of the stopped broker that gets the partitions."
    ),
]


def import_log(
    sources: Sources, data: Data, dry_run: DryRun = False, output: OutputFormat = Format.TABLE
) -> None:
    """Copy partitions' files into existing topics of the same names. Stop both brokers first."""
    from kproc.broker.config import Config
    from kproc.broker.storage.checkpoints import read_meta_properties
    from kproc.broker.storage.os_fs import OsFs
    from kproc.broker.supervisor.import_partitions import import_partitions

    meta = read_meta_properties(OsFs(), data)
    settings = {"log.dirs": str(data)} if meta is None else {"log.dirs": str(data), "node.id": meta.node_id}
    rows = [
        {**each._asdict(), "source": str(each.source)}
        for each in import_partitions(Config.build(settings), sources, dry_run=dry_run)
    ]
    words = "{topic}-{partition}: {segments} segments from {source}, {converted_records} records converted"
    if dry_run:
        words = "would import {topic}-{partition}: {segments} segments from {source}, {converted_records} old records"
    print_done(rows, words, output)
