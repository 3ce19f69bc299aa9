"""Default of a topic sink's `delivery`: exactly-once if the broker has transactions, otherwise at-least-once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kproc.client import ApiError, ClientError
from kproc.pipeline.access import Access, access_of
from kproc.pipeline.model import Pipeline, Sink
from kproc.spark.option_values import OptionError
from kproc.spark.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, parse_sink_options


def with_deliveries(pipeline: Pipeline, note: Callable[[str], None]) -> Pipeline:
    """Return the pipeline with a delivery chosen for each topic sink of kproc's connector that has none.

    Call `note` with a warning for each sink that gets at-least-once.
    """
    able: dict[Access, bool] = {}
    sinks = []
    for sink in pipeline.sinks:
        if sink.kind == "topic" and sink.connector == "kproc" and _is_open(sink):
            access = access_of(sink)
            if access not in able:
                able[access] = has_transactions(access)
            reason = "" if able[access] else f"{access} has no transactions"
            reason = reason or _conflict(sink)
            if reason:
                note(
                    f"warning: sink {sink.name} writes at least once, a failure may double rows: {reason}; "
                    f'delivery = "{AT_LEAST_ONCE}" is the same without this warning'
                )
            sink = replace(sink, delivery=AT_LEAST_ONCE if reason else EXACTLY_ONCE)
        sinks.append(sink)
    return replace(pipeline, sinks=tuple(sinks))


def _is_open(sink: Sink) -> bool:
    """Return True if the specification does not choose the delivery."""
    return sink.delivery is None and not any(name.lower() == "delivery" for name in sink.options)


def has_transactions(access: Access) -> bool:
    """Return True if the brokers coordinate transactions, or if they are unreachable."""
    cluster = access.cluster()
    try:
        cluster.coordinator("kproc-pipeline", of_transactions=True)
    except ApiError:
        # The broker has rejected FindCoordinator: it has no transactions, or this user may not use them.
        return False
    except ClientError:
        # No broker responds. Assume transactions: the run waits for the brokers later, and the delivery must not depend
        # on a temporary outage.
        return True
    finally:
        cluster.close()
    return True


def _conflict(sink: Sink) -> str:
    """Return the reason why the sink's options exclude exactly-once, or an empty string."""
    options = {name.lower(): text for name, text in sink.options.items()}
    try:
        parse_sink_options({**options, "kafka.bootstrap.servers": sink.bootstrap, "delivery": EXACTLY_ONCE})
    except OptionError as error:
        return str(error)
    return ""
