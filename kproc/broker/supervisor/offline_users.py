"""Changes SCRAM users in the data directory of a stopped broker, because the first user cannot log in to be created.

`kafka-storage format --add-scram` does this for Kafka. Here it can be repeated at any time.
"""

from __future__ import annotations

from typing import Any

from kproc.broker.config import Config
from kproc.broker.storage.fs import Fs
from kproc.broker.supervisor.offline_metadata import change_metadata, read_metadata

Row = dict[str, Any]


def alter_users(config: Config, bodies: list[Row], fs: Fs | None = None) -> list[Row]:
    """Apply AlterUserScramCredentials requests with derived keys to the data directory of `config`.

    Creates the directory if it does not exist. Returns the rows of the results. Raises FatalError if a broker uses the
    directory or it cannot be opened.
    """
    replies = change_metadata(config, [("alter_user_scram_credentials", body) for body in bodies], fs)
    return [row for reply in replies for row in reply["results"]]


def users_of(config: Config, fs: Fs | None = None) -> list[tuple[str, dict[int, int]]]:
    """Return every user of the directory, with the iterations of each of its mechanisms."""
    users = read_metadata(config, fs).scram_users
    return [
        (name, {number: each.iterations for number, each in users.of(name).items()}) for name in users.names()
    ]
