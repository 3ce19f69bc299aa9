"""`kproc convert-log`: converts messages of formats 0 and 1, from before Kafka 0.11, to batches of format 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kproc.cli.common import Failure, Format, OutputFormat, print_done
from kproc.cli.consent import DryRun

Directories = Annotated[
    list[Path], typer.Argument(metavar="DIRECTORY", help="Directories of partitions, such as DATA/orders-0.")
]


def convert_log(
    directories: Directories, dry_run: DryRun = False, output: OutputFormat = Format.TABLE
) -> None:
    """Convert partitions with messages from before Kafka 0.11, which kproc cannot read. Stop their broker first."""
    from kproc.broker.storage.convert_log import convert_partition
    from kproc.broker.storage.format import parse_partition_directory_name
    from kproc.broker.storage.os_fs import OsFs
    from kproc.common.errors import Corrupt

    rows = []
    for directory in directories:
        if not directory.is_dir() or parse_partition_directory_name(directory.resolve().name) is None:
            raise Failure(f"{directory}: expected the directory of a partition, such as orders-0")
        with _locked(directory.resolve().parent):
            try:
                converted = convert_partition(OsFs(), directory, dry_run=dry_run)
            except Corrupt as error:
                raise Failure(str(error)) from error
        rows.append({"directory": str(directory), **converted._asdict()})
    did = "would be converted" if dry_run else "converted"
    print_done(rows, f"{{directory}}: {{records}} records of {{segments}} segments {did}", output)


@contextmanager
def _locked(data: Path) -> Iterator[None]:
    """Lock a data directory that has a lock file, because a running broker would write into the files to convert."""
    from kproc.broker.supervisor.directory_lock import DirectoryInUse, locked_directory

    try:
        with locked_directory(data):
            yield
    except DirectoryInUse as error:
        raise Failure(f"{data} is in use by a broker: stop it first") from error
