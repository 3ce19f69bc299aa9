"""`kproc quota list|set|delete`: lists and changes quotas of users, client ids and addresses of a running broker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from kproc.cli.tables import print_count, print_table
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.client import Client as BrokerClient

Row = dict[str, Any]
Names = dict[str, str | None]
app = typer.Typer(help="Show and change quotas of users, client ids and addresses.", no_args_is_help=True)

_KEYS = (
    "producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate; "
    "of addresses connection_creation_rate"
)
_WORDS = {"user": "user", "client-id": "client", "ip": "address"}
User = Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="A user, without `User:`.")]
EveryUser = Annotated[
    bool, typer.Option("--every-user", help="Default quota of each user without a quota of its own.")
]
Client = Annotated[str | None, typer.Option("--client", metavar="ID", help="The client id.")]
EveryClient = Annotated[
    bool, typer.Option("--every-client", help="Default quota of each client id without a quota of its own.")
]
Address = Annotated[str | None, typer.Option("--address", metavar="IP", help="The IP address of clients.")]
EveryAddress = Annotated[
    bool, typer.Option("--every-address", help="Default quota of each address without a quota of its own.")
]
Assignments = Annotated[
    list[str],
    typer.Argument(
        metavar="QUOTA=VALUE",
        help=f"{_KEYS}.",
    ),
]
Quotas = Annotated[list[str] | None, typer.Argument(metavar="QUOTA", help="Names of the quotas to delete.")]


@dataclass(frozen=True)
class QuotaOwner:
    """The owner of a quota: a user, a client id, both together, or an address."""

    user: User = None
    every_user: EveryUser = False
    client: Client = None
    every_client: EveryClient = False
    address: Address = None
    every_address: EveryAddress = False

    def names(self) -> Names:
        """Return the entity (type to name) that the options name. A name of None is the default entity."""
        names: Names = {}
        for kind, name, every in (
            ("user", self.user, self.every_user),
            ("client-id", self.client, self.every_client),
            ("ip", self.address, self.every_address),
        ):
            if name is not None and every:
                usage_error(f"--{_WORDS[kind]} and --every-{_WORDS[kind]} exclude each other")
            if name is not None or every:
                names[kind] = name
        if not names:
            usage_error(
                "name the owner of the quota: --user, --client, --address, or one of --every-user and so on"
            )
        return names


@app.command("list")
def list_quotas(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE) -> None:
    """Show all quotas. The most specific one applies: that of a user and client id before that of the user."""
    rows = _quotas(bootstrap)
    if output is Format.JSON:
        print_json(rows)
    else:
        shown = sorted((shown_owner(row["of"]), row["quota"], f"{row['value']:.15g}") for row in rows)
        print_table(("OF", "QUOTA", "VALUE"), shown, cut=("OF",))
        print_count(len(shown), "quota")


@app.command("set")
def set_quotas(
    assignments: Assignments,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    owner: QuotaOwner = QuotaOwner(),
    dry_run: DryRun = False,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Set quotas of a user, a client id, both, or an address. They apply at once."""
    names = owner.names()
    values: dict[str, float] = {}
    for key, value in map(_assignment, assignments):
        if key in values:
            usage_error(f"{key} is given twice")
        values[key] = value
    ops = [{"key": key, "value": value, "remove": False} for key, value in values.items()]
    _change(bootstrap, names, ops, dry_run=dry_run)
    result, of = "would set" if dry_run else "set", shown_owner(names)
    rows = [{"result": result, "of": of, "quota": op["key"], "value": op["value"]} for op in ops]
    print_done(rows, "{result} {quota} of {of} to {value:.15g}", output)


@app.command("delete")
def delete_quotas(
    quotas: Quotas = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    owner: QuotaOwner = QuotaOwner(),
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Delete quotas.

    Without --yes the command shows them and asks first.

    After the deletion the next most specific quota applies, if there is one.
    """
    names = owner.names()
    consent.check("quota delete")
    there = {row["quota"]: row["value"] for row in _quotas(bootstrap) if row["of"] == names}
    if not quotas:
        usage_error(
            f"name the quotas to delete, such as {min(there, default='producer_byte_rate')}; "
            f"{shown_owner(names)} has {', '.join(sorted(there)) or 'no quota'}"
        )
    quotas = list(dict.fromkeys(quotas))  # The broker rejects a repeated name.
    for key in quotas:
        if key not in there:
            raise Failure(f"{shown_owner(names)} has no quota {key}{_others(there)}")
    plan = [
        {"result": "would delete", "of": shown_owner(names), "quota": key, "value": there[key]}
        for key in quotas
    ]
    words = "{result} {quota} of {of}, which is {value:.15g}"
    # KIP-546: with `remove` the value is ignored, but the field is mandatory.
    ops = [{"key": key, "value": 0.0, "remove": True} for key in quotas]
    if consent.needs_plan:
        _change(bootstrap, names, ops, dry_run=True)
    if not consent.obtain(plan, words, output):
        return
    _change(bootstrap, names, ops)
    rows = [{"result": "deleted", "of": shown_owner(names), "quota": key} for key in quotas]
    print_done(rows, "{result} {quota} of {of}", output)


def _quotas(bootstrap: str) -> list[Row]:
    with connect(bootstrap) as client:
        return read_quotas(client)


def read_quotas(client: BrokerClient) -> list[Row]:
    """Return all quotas of the broker. Raise a Failure if this user may not describe quotas."""
    from kproc.wire.header import ApiKey

    answer = client.call_latest(ApiKey.DESCRIBE_CLIENT_QUOTAS, {"components": [], "strict": False})
    if answer["error_code"]:
        raise _refused(answer["error_code"], answer["error_message"])
    return [
        {
            "of": {part["entity_type"]: part["entity_name"] for part in entry["entity"]},
            "quota": value["key"],
            "value": value["value"],
        }
        for entry in answer["entries"]
        for value in entry["values"]
    ]


def _others(there: Collection[str]) -> str:
    return f"; it has {', '.join(sorted(there))}" if there else ""


def _assignment(text: str) -> tuple[str, float]:
    key, _, value = text.partition("=")
    try:
        return key, float(value)
    except ValueError:
        return usage_error(f"{text}: expected QUOTA=NUMBER, such as producer_byte_rate=1000000")


def shown_owner(names: Names) -> str:
    """Format the owner of a quota in words, such as `user alice, every client`."""
    return ", ".join(
        f"every {_WORDS[kind]}" if name is None else f"{_WORDS[kind]} {name}" for kind, name in names.items()
    )


def _change(bootstrap: str, names: Names, ops: list[Row], *, dry_run: bool = False) -> None:
    from kproc.wire.header import ApiKey

    entity = [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]
    with connect(bootstrap) as client:
        body = {"entries": [{"entity": entity, "ops": ops}], "validate_only": dry_run}
        (entry,) = client.call_latest(ApiKey.ALTER_CLIENT_QUOTAS, body)["entries"]
    if entry["error_code"]:
        raise _refused(entry["error_code"], entry["error_message"])


def _refused(code: int, message: str | None) -> Failure:
    from kproc.client.error_texts import error_text, name_code

    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return Failure(
            name_code("access denied: this needs ALTER_CONFIGS or DESCRIBE_CONFIGS on the cluster", code)
        )
    known = f" (there are {_KEYS})" if message and message.startswith("Invalid configuration key") else ""
    return Failure(name_code(f"{message}{known}", code) if message else error_text(code))
