"""Access: bootstrap servers and security of a source or sink, for code of a pipeline that sends requests itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kproc.client.security.settings import PLAINTEXT, ClientSecurity
from kproc.pipeline.errors import PipelineError
from kproc.spark.access import CLIENT_CONFIG, connector_options, read_security
from kproc.spark.broker_clients import Connecting
from kproc.spark.brokers import Cluster
from kproc.spark.option_values import OptionError

if TYPE_CHECKING:
    from kproc.pipeline.model import PipelineSource, Sink

QUICK = Connecting(client_id="kproc-pipeline", connect_ms=2_000, request_ms=5_000, retry_ms=2_000)


class Access(NamedTuple):
    """Bootstrap servers with the security settings to connect to them. str() shows the servers only."""

    bootstrap: str
    security: ClientSecurity = PLAINTEXT

    def __str__(self) -> str:
        return self.bootstrap

    def cluster(self) -> Cluster:
        """Return a new Cluster with timeouts of 2 to 5 s, because a user waits for the command.

        The caller must close it.
        """
        return Cluster(self.bootstrap, replace(QUICK, security=self.security))


def access_of(part: PipelineSource | Sink) -> Access:
    """Return the access of a source or sink of topics. Raise PipelineError if its options are invalid."""
    given = {name.lower(): text for name, text in part.options.items()}
    if part.client_config is not None:
        given.setdefault(CLIENT_CONFIG, part.client_config)
    try:
        return Access(part.bootstrap, read_security(given))
    except OptionError as error:
        raise PipelineError(f"{part.name}: {error}") from error


def security_options(part: PipelineSource | Sink) -> dict[str, str]:
    """Return the connector's options for the client_config file of a source or sink.

    kproc's connector reads the file itself. For Spark's own connector, the file's settings become options that begin
    with `kafka.`
    """
    if part.client_config is None:
        return {}
    if part.connector == "kproc":
        return {CLIENT_CONFIG: part.client_config}
    try:
        return connector_options(part.client_config)
    except OptionError as error:
        raise PipelineError(f"{part.name}: {error}") from error
