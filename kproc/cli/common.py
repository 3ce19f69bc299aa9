"""Shared code of the commands: options for the connection, one-line errors, tables and JSON."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from kproc.cli.failure import DEFAULT_BOOTSTRAP as DEFAULT_BOOTSTRAP
from kproc.cli.failure import DEFAULT_PORT as DEFAULT_PORT
from kproc.cli.failure import Failure as Failure
from kproc.cli.failure import usage_error as usage_error
from kproc.cli.lines import print_document, print_line
from kproc.cli.profile_store import (
    BOOTSTRAP_VARIABLE,
    COMMAND_CONFIG_VARIABLE,
    PROFILE_VARIABLE,
    ChosenConnection,
    complete_profiles,
    find_connection,
)
from kproc.common.printable import printable_json

if TYPE_CHECKING:
    from kproc.client import Client
    from kproc.client.security.settings import ClientSecurity


class Format(StrEnum):
    """The output format of a command."""

    TABLE = "table"
    JSON = "json"


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        # Do not let typer read the variable: find_connection() does, because the variable ranks between --profile and
        # the profile in use.
        help=f"The broker to talk to. [env: {BOOTSTRAP_VARIABLE}; default: {DEFAULT_BOOTSTRAP}]",
        show_default=False,
    ),
]
_CLIENT_ID = "kproc"
_CLIENT_ID_BYTES_MAX = 32_767  # The length of a client id in a request header is an INT16.
_BROKERS = {"bootstrap", "from_broker"}  # The parameters by which commands name the broker to connect to.
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help=f"Properties file for TLS and login, with the names of Kafka's clients. [env: {COMMAND_CONFIG_VARIABLE}]",
    ),
]
GivenClientId = Annotated[
    str | None,
    typer.Option(
        "--client-id",
        metavar="NAME",
        help="Name of this client in quotas, logs and kproc clients. "
        f"[default: client.id of the file, or {_CLIENT_ID}]",
    ),
]
UsedProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help=f"The saved connection to use (kproc profile list). [env: {PROFILE_VARIABLE}]",
        autocompletion=complete_profiles,
    ),
]
OutputFormat = Annotated[Format, typer.Option("--format", "-f", help="Format of the output.")]
# Limit of a response in bytes: 100,000 partitions need about 10 MB. It is not for records: confluent-kafka reads them.
_ANSWER_BYTES_MAX = 256 << 20
_SURROGATE = re.compile("[\ud800-\udfff]")
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
SECONDS_MAX = INT_MAX // 1000
"""The longest time of an option in seconds. It is an int in ms for the broker and for librdkafka."""


def interval_option(text: str) -> Any:
    """Return the option for the time over which a command measures rates. 0 switches the measurement off."""
    return typer.Option("--interval", "-i", metavar="S", min=0, max=SECONDS_MAX, help=text)


@dataclass(frozen=True)
class _CommandConfig:
    """The values of `--command-config`, `--client-id` and `--profile` of a command, which all its connections use."""

    path: Path | None = None
    client_id: str | None = None
    has_variable: bool = True
    """True if the file that KPROC_COMMAND_CONFIG names is used. False with a profile."""
    connection: ChosenConnection | None = None

    @property
    def file(self) -> Path | None:
        """The client configuration file: that of `--command-config`, or else that of the profile.

        Without a profile: that of the variable KPROC_COMMAND_CONFIG, or None.
        """
        named = os.environ.get(COMMAND_CONFIG_VARIABLE) if self.has_variable else None
        return self.path or (Path(named) if named else None)

    @functools.cached_property
    def properties(self) -> Mapping[str, str]:
        """The properties in the file, or none without a file.

        Read the file only once, because it can be a pipe: `--command-config <(vault read ...)`.
        """
        if self.file is None:
            return {}
        from kproc.client.security.settings import read_client_config

        return read_client_config(self.file, os.environ.get)


_command_config = _CommandConfig()


@contextmanager
def connection_settings(
    connection: ChosenConnection | None, path: Path | None, client_id: str | None = None
) -> Iterator[None]:
    """Apply the file of `--command-config`, or else the profile's, to all connections inside the context.

    `client_id` is the value of --client-id. It replaces the client.id of the file. A profile without a file means
    a connection without TLS and login, even if the environment names a file. `connection` is None for a command without
    --profile. The previous settings are restored, because one process can run several commands.
    """
    global _command_config
    before = _command_config
    if connection is None:
        _command_config = _CommandConfig(path, client_id)
    else:
        _command_config = _CommandConfig(
            path or connection.command_config,
            client_id,
            has_variable=connection.profile is None,
            connection=connection,
        )
    try:
        yield
    finally:
        _command_config = before


def profile_in_use() -> str | None:
    """Return the name and the address of the profile that this command uses, or None without a profile."""
    connection = _command_config.connection
    if connection is None or connection.profile is None:
        return None
    return f"{connection.profile} ({connection.bootstrap})"


def command_config() -> Path | None:
    """Return the file of `--command-config`, or else that of the profile. None: neither names a file."""
    return _command_config.path


def command_config_in_force() -> Path | None:
    """Return the client configuration file of all connections, from option, profile or environment. None: no file."""
    return _command_config.file


def client_security() -> ClientSecurity | None:
    """Return the settings for TLS and SASL in the client configuration file, or None if connections use neither."""
    properties = _command_config.properties
    if not properties:
        return None
    from kproc.client.security.settings import parse_client_security

    return parse_client_security(properties)


def client_id() -> str:
    """Return the client id of the command's requests: --client-id, or client.id of the file, or `kproc`.

    Raise a usage error if it does not fit into a request header, or if --client-id is empty.
    """
    given, source = _command_config.client_id, "--client-id"
    if given == "":
        usage_error(f"{source}: must not be empty")  # librdkafka would send its default, `rdkafka`.
    if given is None:
        given, source = _command_config.properties.get("client.id", "").strip() or _CLIENT_ID, "client.id"
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        usage_error(f"{source}: must be UTF-8")
    if size > _CLIENT_ID_BYTES_MAX:
        usage_error(f"{source}: has {size} bytes; at most {_CLIENT_ID_BYTES_MAX} are possible")
    return given


def librdkafka_security() -> Mapping[str, Any]:
    """Return the TLS and SASL settings as configuration of confluent_kafka."""
    security = client_security()
    if security is None:
        return {}
    from kproc.client.security.librdkafka import librdkafka_settings

    return librdkafka_settings(security)


def connect(bootstrap: str, *, timeout_ms: int = 10_000, introduces: bool = True) -> Client:
    """Connect to the first broker of a bootstrap list that answers. If none does, raise the last one's error.

    introduces: send kproc's name and version in an ApiVersions request first.
    """
    from kproc.cli.answers import CommandClient
    from kproc.client import ConnectionFailed

    addresses = bootstrap_addresses(bootstrap)
    security, name = client_security(), client_id()
    for host, port in addresses[:-1]:
        try:
            client = CommandClient.connect(
                host, port, timeout_ms=timeout_ms, client_id=name, security=security
            )
            return _prepared(client, introduces=introduces)
        except ConnectionFailed:
            continue  # The next broker may be up. If none is, the user sees the last one's error.
    host, port = addresses[-1]
    client = CommandClient.connect(host, port, timeout_ms=timeout_ms, client_id=name, security=security)
    return _prepared(client, introduces=introduces)


def bootstrap_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """Parse a bootstrap list to (host, port) pairs. Raise a usage error for an invalid address."""
    from kproc.broker.config.listeners import split_address
    from kproc.broker.config.values import ConfigError

    try:
        return [split_address(item, default_port=DEFAULT_PORT) for item in bootstrap.split(",")]
    except ConfigError as error:
        usage_error(f"{_source_of(bootstrap)}: {error}")


def _source_of(bootstrap: str) -> str:
    """Return what the user has to correct: a profile, a variable or the option."""
    connection = _command_config.connection
    if connection is None or connection.bootstrap != bootstrap:
        return "--bootstrap"
    return connection.source if connection.profile is None else f"profile {connection.profile}"


def _prepared(client: Client, *, introduces: bool) -> Client:
    """Limit the size of the client's responses, and return the client.

    introduces: send kproc's name and version, which `kproc clients` shows. If that fails, close the client.
    """
    from kproc import __version__

    # Limit the size of responses: any user can listen at a free port, and could make a command of root fill the memory.
    client.answer_bytes_max = _ANSWER_BYTES_MAX
    if introduces:
        try:
            client.introduce("kproc", __version__)
        except BaseException:
            client.close()
            raise
    return client


def connect_for_records(bootstrap: str, *, timeout_ms: int = 10_000) -> Client:
    """Connect as `connect` does, but raise a Failure for a control listener, where librdkafka would retry for ever."""
    from kproc.client import ClientError
    from kproc.wire.header import ApiKey

    with ExitStack() as stack:
        client = stack.enter_context(connect(bootstrap, timeout_ms=timeout_ms))
        if ApiKey.PRODUCE in client.api_versions():
            stack.pop_all()
            return client
        try:
            listeners = client.operate("status")["listeners"]
        except ClientError:
            raise Failure(f"{client.address} does not serve clients: it has no Produce API") from None
    by = ", ".join(str(row["advertised"]) for row in listeners.values())
    raise Failure(
        f"{client.address} is a control listener, for status, top, scale, topic and config; for records connect to {by}"
    )


def with_command_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --command-config and --client-id to a command whose parameters show that it connects to a broker.

    Add --profile, too, if its --bootstrap has the usual default.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    if not _BROKERS & parameters.keys():
        return command

    takes_profile = "bootstrap" in parameters and parameters["bootstrap"].default == DEFAULT_BOOTSTRAP

    @functools.wraps(command)
    def run(
        *arguments: Any, command_config: Path | None = None, client_id: str | None = None, **options: Any
    ) -> Any:
        connection = None
        if takes_profile:
            connection = find_connection(options["bootstrap"], options.pop("profile"))
            options["bootstrap"] = connection.bootstrap
        with connection_settings(connection, command_config, client_id):
            return command(*arguments, **options)

    everything = [
        # Set the default of --bootstrap to None, so that a value shows that the user gave the option.
        each.replace(default=None) if takes_profile and each.name == "bootstrap" else each
        for each in parameters.values()
    ]
    added: dict[str, Any] = {"command_config": CommandConfig}
    # A pipeline's --bootstrap has no default. Its specification has the client id of each source and sink.
    if "bootstrap" not in parameters or parameters["bootstrap"].default is not None:
        added["client_id"] = GivenClientId
    if takes_profile:
        added["profile"] = UsedProfile
    everything += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in added.items()
    ]
    run.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in everything}
    return run


def with_option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each parameter that is a dataclass by an option for each field, so that commands can share options."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in parameters.items() if is_dataclass(each.annotation)
    }
    if not groups:
        return command

    @functools.wraps(command)
    def run(**options: Any) -> Any:
        for name, group in groups.items():
            options[name] = group(**{each.name: options.pop(each.name) for each in fields(group)})
        return command(**options)

    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        flat += _options_in(groups[name]) if name in groups else [parameter]
    # Python requires that parameters without a default come first in a signature.
    flat.sort(key=lambda each: each.default is not inspect.Parameter.empty)
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in flat}
    return run


def _options_in(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=each.default,
            annotation=kinds[each.name],
        )
        for each in fields(group)
    ]


def topic_metadata(
    client: Client, names: list[str] | None, *, with_operations: bool = False
) -> list[dict[str, Any]]:
    """Return the broker's metadata of topics, or of all topics for None. Never create a topic.

    with_operations: also request the operations that the user may do on each topic (kproc/cli/rights.py).
    """
    topics: list[dict[str, Any]] = request_metadata(client, names, with_operations=with_operations)["topics"]
    return topics


def request_metadata(
    client: Client, names: list[str] | None, *, with_operations: bool = False
) -> dict[str, Any]:
    """Return the Metadata response, with brokers and topics: those in `names`, or all topics for None."""
    from kproc.wire.header import ApiKey

    fields = {
        "topics": None if names is None else [{"topic_id": None, "name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": with_operations,
    }
    return client.call_latest(ApiKey.METADATA, fields)


def print_json(value: Any) -> None:
    """Print one indented JSON document, with keys in the order in which they were built."""
    print_document(format_json(value))


def format_json(value: Any) -> str:
    """Format one indented JSON document with control characters escaped.

    A byte of a path that is not UTF-8 is written as in tables, \\udcff, because JSON has no way to express it.
    """
    import orjson

    try:
        document = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    except orjson.JSONEncodeError:
        import json

        text = json.dumps(value, indent=2, ensure_ascii=False)
        document = _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()
    return printable_json(document).decode() + "\n"


def print_done(
    rows: Sequence[dict[str, Any]], words: str, output: Format, refusals: Sequence[str] = ()
) -> None:
    """Print a line for each row by the template `words`, or JSON. Then raise a Failure if there are refusals."""
    if output is Format.JSON:
        print_json(rows)
    else:
        for row in rows:
            print_line(words.format_map(row))
    if refusals:
        raise Failure("; ".join(refusals))


def chosen_names(option: str, given: Iterable[str] | None, known: Sequence[str]) -> list[str]:
    """Return the given names in the spelling of `known`, ignoring case. Raise a usage error for an unknown name."""
    spelling = {name.lower(): name for name in known}
    for name in given or ():
        if name.lower() not in spelling:
            usage_error(f"{option} {name!r}: expected one of {', '.join(known)}")
    return [spelling[name.lower()] for name in given or ()]


def pairs(option: str, items: Iterable[str]) -> list[tuple[str, str]]:
    """Parse `name=value` arguments to pairs. Raise a usage error for an argument without `=`."""
    answer = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            usage_error(f"{option} {item!r}: expected name=value")
        answer.append((name, value))
    return answer
