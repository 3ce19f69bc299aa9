"""`kproc user add|list|delete`: SCRAM users of a running broker or, with --data, of a stopped one."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.broker.security.sasl.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    KINDS,
    KINDS_BY_NUMBER,
    ScramKind,
    keys_for_password,
    new_salt,
    salted_password,
)
from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    print_done,
    print_json,
    usage_error,
)
from kproc.cli.connection import connect
from kproc.cli.consent import Consent, DryRun
from kproc.cli.failure import explain
from kproc.cli.rights import require_on_cluster
from kproc.cli.tables import print_count, print_table
from kproc.common.errors import ErrorCode
from kproc.common.regular_file import read_bounded_text

if TYPE_CHECKING:
    from kproc.broker.config import Config

Row = dict[str, Any]
app = typer.Typer(help="Show and change users that log in by SCRAM.", no_args_is_help=True)

_BYTES_MAX = 1 << 16
Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name, without `User:`.")]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option("--mechanism", "-m", metavar="MECHANISM", help=f"{' or '.join(KINDS)}; both by default."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Change this data directory of a stopped broker. It is created if it does not exist.",
    ),
]
ServerConfig = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Settings of a stopped broker, for its log.dirs and node.id."
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Read the password from this file's first line. - reads the standard input.",
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        min=ITERATIONS_MIN,
        max=ITERATIONS_MAX,
        help="Number of hash iterations. More make logins, and guesses of the password, slower.",
    ),
]


@app.command("add")
def add_user(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    mechanism: Mechanisms = None,
    iterations: Iterations = 8192,
    password_file: PasswordFile = None,
    data: Data = None,
    config: ServerConfig = None,
    dry_run: DryRun = False,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Add a user, or change its password. The password comes from a prompt or a file, never from an argument.

    Add the first user before the broker's first start: `kproc user add admin --data DIR`.
    """
    kinds = _kinds(mechanism)
    _check_name(name)
    offline = _offline(data, config)  # Check settings before the prompt for a password.
    words = "{result} {user} by {mechanism}"
    if dry_run:
        print_done(_planned_rows(name, kinds, bootstrap, offline), words, output)
        return
    password = _password(name, password_file)
    # Send a request for each mechanism, because a request may contain a user only once.
    requests = [
        {"deletions": [], "upsertions": [_credential(name, kind, password, iterations)]} for kind in kinds
    ]
    _change(requests, bootstrap, offline)
    rows = [{"result": "added", "user": name, "mechanism": kind.name} for kind in kinds]
    print_done(rows, words, output)


@app.command("delete")
def delete_user(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    mechanism: Mechanisms = None,
    data: Data = None,
    config: ServerConfig = None,
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Delete a user, after a confirmation or with --yes. The user cannot log in any more.

    With --mechanism, delete its password for this mechanism only, and keep the other one. The user's connections stay
    until their sessions end.
    """
    consent.check("user delete")
    offline = _offline(data, config)
    there = dict(_users(bootstrap, offline, is_change=True)).get(name, {})
    kinds = [kind for kind in _kinds(mechanism) if kind.number in there]
    if not kinds:
        by = f" by {' or '.join(mechanism)}" if mechanism else ""
        raise Failure(f"there is no user {name}{by}")
    words = "{result} {user} by {mechanism}"
    plan = [{"result": "would delete", "user": name, "mechanism": kind.name} for kind in kinds]
    if not consent.obtain(plan, words, output):
        return
    rows = [{"name": name, "mechanism": kind.number} for kind in kinds]
    _change([{"deletions": [row], "upsertions": []} for row in rows], bootstrap, offline)
    print_done([row | {"result": "deleted"} for row in plan], words, output)


@app.command("list")
def list_users(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    data: Data = None,
    config: ServerConfig = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show the users that may log in by SCRAM. Users of PLAIN are in the broker's settings."""
    rows = [
        {"user": name, "mechanism": KINDS_BY_NUMBER[number].name, "iterations": iterations}
        for name, there in _users(bootstrap, _offline(data, config))
        for number, iterations in there.items()
    ]
    if output is Format.JSON:
        print_json(rows)
    else:
        print_table(("USER", "MECHANISM", "ITERATIONS"), [list(row.values()) for row in rows], cut=("USER",))
        print_count(len({row["user"] for row in rows}), "user")


def _credential(name: str, kind: ScramKind, password: str, iterations: int) -> Row:
    """Return the row that sets a user's password for one mechanism, with a new salt."""
    salt = new_salt(kind)
    salted = salted_password(kind, password, salt, iterations)
    row = {"name": name, "mechanism": kind.number, "iterations": iterations, "salt": salt}
    return row | {"salted_password": salted}


def _check_name(name: str) -> None:
    """Raise a usage error for a name that the broker would reject, because a dry run sends no request that does."""
    if not name:
        usage_error("Username must not be empty")  # Kafka's words.
    if not name.isascii() or "\0" in name:
        usage_error(f"{name!r}: SCRAM user names must be ASCII")


def _planned_rows(
    name: str, kinds: list[ScramKind], bootstrap: str, offline: Config | None
) -> list[dict[str, Any]]:
    """Return the rows that --dry-run prints for a user: for each mechanism, if the user has a password for it."""
    # A new data directory has no users.
    is_new = offline is not None and not _metadata_of(offline).exists()
    there = {} if is_new else dict(_users(bootstrap, offline, is_change=True)).get(name, {})
    return [
        {
            "result": "would change the password of" if kind.number in there else "would add",
            "user": name,
            "mechanism": kind.name,
        }
        for kind in kinds
    ]


def _kinds(mechanisms: list[str] | None) -> list[ScramKind]:
    unknown = [each for each in mechanisms or () if each.upper() not in KINDS]
    if unknown:
        usage_error(f"--mechanism {unknown[0]}: it is {' or '.join(KINDS)}")
    return [KINDS[name] for name in dict.fromkeys(each.upper() for each in mechanisms or KINDS)]


def _password(name: str, file: Path | None) -> str:
    """Read the password from the file, from standard input, or by a prompt on a terminal."""
    try:
        if file is None and sys.stdin.isatty():
            password = getpass.getpass(f"Password of {name}: ")
            if password != getpass.getpass("Again: "):
                raise Failure("the two passwords differ")
        else:
            # The limit is for a wrong name such as /dev/zero, which would otherwise fill the memory.
            if file is None or str(file) == "-":
                text = sys.stdin.read(_BYTES_MAX)
            else:
                text = read_bounded_text(file, _BYTES_MAX)
            password = text.partition("\n")[0].rstrip("\r")
        # In the C locale Python keeps other bytes as surrogates. The error of a later encode() would show the password.
        password.encode()
    except UnicodeError:
        raise Failure("the password must be UTF-8") from None
    if not password:
        raise Failure("the password must not be empty")
    return password


def _offline(data: Path | None, config: Path | None) -> Config | None:
    """Return the settings of a stopped broker, or None if the command is for a running one."""
    if data is None and config is None:
        return None
    from kproc.broker.config import Config

    return Config.build({} if data is None else {"log.dirs": str(data)}, file=config)


def _metadata_of(offline: Config) -> Path:
    from kproc.broker.storage.format import METADATA_DIRECTORY

    return Path(offline.log_dirs, METADATA_DIRECTORY)


def _change(requests: list[Row], bootstrap: str, offline: Config | None) -> None:
    """Send the changes to the broker, or apply them to its directory. Raise a Failure for a rejected change.

    offline: the settings of the stopped broker whose directory is changed, or None for a running one.
    """
    if offline is not None:
        from kproc.broker.supervisor.offline_metadata import alter_users

        # A running broker derives the stored keys from the salted password in the request. Derive them here for a
        # stopped broker: the metadata must never contain the salted password, with which one could log in.
        bodies = [
            {**each, "upsertions": [keys_for_password(row) for row in each["upsertions"]]}
            for each in requests
        ]
        results = alter_users(offline, bodies)
    else:
        from kproc.wire.header import ApiKey

        results = []
        with connect(bootstrap) as client:
            for request in requests:
                results += client.call_latest(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request)["results"]
    for result in results:
        if result["error_code"]:
            raise _refused(result)


def _users(
    bootstrap: str, offline: Config | None, *, is_change: bool = False
) -> list[tuple[str, dict[int, int]]]:
    """Return (user, iterations by number of the SCRAM mechanism) of every user.

    With `is_change`, raise a Failure if the caller has no right to change users.
    """
    if offline is not None:
        from kproc.broker.supervisor.offline_metadata import users_of

        if not Path(offline.log_dirs).is_dir():
            raise Failure(f"there is no data directory {offline.log_dirs}")
        # Opening the metadata would create it in a directory that is not a broker's.
        if not _metadata_of(offline).is_dir():
            raise Failure(
                f"{offline.log_dirs} is not the data directory of a broker: it has no {_metadata_of(offline).name}"
            )
        return users_of(offline)
    from kproc.broker.security.acl import Operation
    from kproc.wire.header import ApiKey

    with connect(bootstrap) as client:
        if is_change:
            require_on_cluster(client, Operation.ALTER)
        answer = client.call_latest(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
    if answer["error_code"]:
        raise _refused(answer)
    return [
        (row["user"], {info["mechanism"]: info["iterations"] for info in row["credential_infos"]})
        for row in sorted(answer["results"], key=lambda row: str(row["user"]))
    ]


def _refused(result: Row) -> Failure:
    from kproc.client.error_texts import name_code

    code = result["error_code"]
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return Failure(name_code("access denied: this needs ALTER or DESCRIBE on the cluster", code))
    return Failure(explain(result.get("user", "users"), code, result["error_message"]))
