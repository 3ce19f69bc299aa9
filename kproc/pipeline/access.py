"""Where a source or a sink connects and how: what the parts of a pipeline that ask brokers themselves go by."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kproc.client.security.settings import PLAINTEXT, ClientSecurity
from kproc.pipeline.errors import PipelineError
from kproc.spark.access import CLIENT_CONFIG, connector_options, read_security
from kproc.spark.brokers import Cluster, Connecting
from kproc.spark.option_values import OptionError

if TYPE_CHECKING:
    from kproc.pipeline.model import Sink, Source

QUICK = Connecting(client_id="kproc-pipeline", connect_ms=2_000, request_ms=5_000, retry_ms=2_000)


class Access(NamedTuple):
    """Brokers, and how to encrypt and log in; shown as the brokers alone."""

    bootstrap: str
    security: ClientSecurity = PLAINTEXT

    def __str__(self) -> str:
        return self.bootstrap

    def cluster(self) -> Cluster:
        """Connections for a few questions, which somebody waits for; close it."""
        return Cluster(self.bootstrap, replace(QUICK, security=self.security))


def access_of(part: Source | Sink) -> Access:
    """That of a source or a sink of topics; PipelineError where its options cannot be."""
    given = {name.lower(): text for name, text in part.options.items()}
    if part.client_config is not None:
        given.setdefault(CLIENT_CONFIG, part.client_config)
    try:
        return Access(part.bootstrap, read_security(given))
    except OptionError as error:
        raise PipelineError(f"{part.name}: {error}") from error


def security_options(part: Source | Sink) -> dict[str, str]:
    """The options by which Spark's side connects alike; Spark's own connector reads no such file."""
    if part.client_config is None:
        return {}
    if part.connector == "kproc":
        return {CLIENT_CONFIG: part.client_config}
    try:
        return connector_options(part.client_config)
    except OptionError as error:
        raise PipelineError(f"{part.name}: {error}") from error
