"""The connections of a command: their settings from options, profile and environment, and how they are opened.

`connection_settings` applies the settings while a command runs. `connect` and the other functions use them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.failure import DEFAULT_PORT, Failure, usage_error
from kproc.cli.profile_store import COMMAND_CONFIG_VARIABLE, ChosenConnection

if TYPE_CHECKING:
    from kproc.client import Client
    from kproc.client.security.settings import ClientSecurity

DEFAULT_CLIENT_ID: Final = "kproc"
_CLIENT_ID_BYTES_MAX: Final = 32_767
"""The length of a client id in a request header is an INT16."""
_ANSWER_BYTES_MAX: Final = 256 << 20
"""Limit of a response: 100,000 partitions need about 10 MB. It is not for records: confluent-kafka reads them."""


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
        given, source = (
            _command_config.properties.get("client.id", "").strip() or DEFAULT_CLIENT_ID,
            "client.id",
        )
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
