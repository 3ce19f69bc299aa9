"""`kproc status`: shows the state and activity of each process of a running broker."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from kproc.broker.storage.set_aside import WAY_OUT
from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Format, OutputFormat, print_json
from kproc.cli.human import format_duration
from kproc.cli.lines import print_facts, print_line, print_note, print_text
from kproc.cli.status_source import StatusSource
from kproc.cli.tables import print_table

# (column title, key in the status response, function that formats the value or None).
COLUMNS = (
    ("ROLE", "role", None),
    ("INDEX", "index", None),
    ("PID", "pid", None),
    ("STATE", "state", None),
    ("RESTARTS", "restarts", None),
    ("CPU%", "cpu_percent", float),
    ("CPU_S", "cpu_seconds", float),
    ("IDLE%", "idle_percent", float),
    ("PSS_MB", "pss_bytes", lambda value: value / 1e6),
    ("CONNS", "connections", None),
    ("REQ/S", "requests_per_s", float),
    ("REQUESTS", "requests_total", None),
    ("RING%", "ring_fill", lambda value: value * 100),
    ("QUEUE", "queue_depth", None),
    ("BEAT_MS", "heartbeat_age_ms", float),
)

# Columns that a narrow terminal does not show, in the order in which they are dropped. JSON has all of them.
DROPPED = ("CPU_S", "BEAT_MS", "REQUESTS", "RESTARTS", "RING%", "PSS_MB", "QUEUE")


def status(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
    apis: Annotated[bool, typer.Option("--apis", help="Show requests by API with their times.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Show roles, pids, CPU, memory, connections, queues and rates of a kproc broker.

    A row is a role: Acceptors accept connections, Processors read requests and write responses, Handlers own
    partitions, the controller owns the metadata, the cleaner deletes and compacts, and the supervisor restarts the
    others. Figures per second and CPU% cover the time since somebody last asked.

    \b
    STATE     running, starting, restarting, leaving (after a scale), hung (no
              sign of life), or down (it fails again and again)
    RESTARTS  how often the supervisor has started it again
    CPU%      of one core
    CPU_S     CPU seconds since its start
    IDLE%     time that it waited for work; near 0: it limits the others
    PSS_MB    memory, shared pages divided among their users
    CONNS     open connections
    REQ/S     requests per second; a request counts in each role it passes
    REQUESTS  requests since its start
    RING%     fill of the rings that it writes; near 100: the readers are slow
    QUEUE     requests in work, and responses that wait for a full ring
    BEAT_MS   time since its last sign of life

    \b
    With --apis, since the broker's start:
    TIMED      requests whose times were measured: a Processor times at most
               one request of an API every 10 ms
    P50_MS     median of the whole time of these requests
    P99_MS     99 of 100 of them took at most this long
    QUEUE_MS   mean wait for a Handler
    LOCAL_MS   mean work of the Handler
    REMOTE_MS  mean wait for others: new records, a sync, members of a group
    ANSWER_MS  mean time until the response reaches the Processor
    SEND_MS    mean time from then until the response is sent

    A narrow terminal does not show all columns; --format json has all.
    """
    with StatusSource(bootstrap) as source:
        answer = source.request_status()
        if source.notice is not None:
            print_note(f"kproc: {source.notice}")
    if as_json or output is Format.JSON:
        print_json(answer)
    else:
        _print_status(answer)
        if apis:
            print_line()
            _print_apis(answer["apis"])


def _print_apis(apis: list[dict[str, Any]]) -> None:
    """Print a table of the APIs, with the names of `kproc top` for the phases. Only some requests are timed."""
    parts = {
        "QUEUE_MS": "RequestQueueTimeMs",
        "LOCAL_MS": "LocalTimeMs",
        "REMOTE_MS": "RemoteTimeMs",
        "ANSWER_MS": "ResponseQueueTimeMs",
        "SEND_MS": "ResponseSendTimeMs",
    }
    rows = []
    for api in apis:
        total = api["times"]["TotalTimeMs"]
        shown = [total["p50"], total["p99"], *(api["times"][name]["mean"] for name in parts.values())]
        times = [f"{value:.3f}" if api["timed"] else None for value in shown]
        versions = ",".join(api["versions"])
        rows.append(
            [api["request"], versions, api["requests_total"], api["errors_total"], api["timed"], *times]
        )
    header = ["API", "VERSIONS", "REQUESTS", "ERRORS", "TIMED", "P50_MS", "P99_MS", *parts]
    print_text(
        "times since the start; P50 and P99 are of the whole request, QUEUE to SEND the mean of each phase"
    )
    print_table(header, rows, drop=("VERSIONS", "TIMED", "SEND_MS", "ANSWER_MS", "ERRORS", "REQUESTS"))


def _print_status(answer: dict[str, Any]) -> None:
    _print_facts_of(answer)
    print_line()
    for lines in problem_lines(answer):
        for line in (*lines, ""):
            print_line(line)
    rows = [
        [
            make(row[key]) if make is not None and row.get(key) is not None else row.get(key)
            for _, key, make in COLUMNS
        ]
        for row in answer["processes"]
    ]
    print_table([name for name, _, _ in COLUMNS], rows, drop=DROPPED)
    # PSS counts only pages that a process has mapped and touched. Add shared memory that is in use but mapped by no
    # process.
    pss_bytes = sum(row.get("pss_bytes") or 0 for row in answer["processes"])
    unmapped_bytes = answer["shared_memory_unmapped_bytes"]
    print_line()
    print_line(
        f"memory {(pss_bytes + unmapped_bytes) / 1e6:.1f} MB: PSS {pss_bytes / 1e6:.1f}, "
        f"shared and not mapped {unmapped_bytes / 1e6:.1f}"
    )


def _print_facts_of(answer: dict[str, Any]) -> None:
    where = [
        f"cluster {answer['cluster_id']}",
        f"up {format_duration(answer['uptime_ms'])}",
        "listeners " + " ".join(f"{name}={_address(value)}" for name, value in answer["listeners"].items()),
        f"control {answer['control']}" if answer.get("control") else "",
        f"metrics http://{answer['metrics']}/metrics" if answer.get("metrics") else "",
    ]
    what = [
        f"data {answer['data']}",
        f"transport {answer['transport']}",
        f"flush {answer['flush']}",
        f"topics {_format_count(answer['topics'], answer.get('internal_topics'))}",
        f"partitions {_format_count(answer['partitions'], answer.get('internal_partitions'))}",
        *(
            f"certificate {name} until {_day(each['expires_ms'])}"
            for name, each in (answer.get("certificates") or {}).items()
        ),
    ]
    states = [f"{count} {state}" for state, count in (answer.get("transactions") or {}).items() if count]
    if states:
        what.append("transactional ids " + ", ".join(states))
    reload = answer.get("last_reload")
    if reload:
        what.append(f"last reload {_second(reload['at_ms'])}")
    print_facts(filter(None, where))
    print_facts(what)


def problem_lines(answer: Mapping[str, Any]) -> list[list[str]]:
    """Return a list of lines for each kind of problem in a status (`answer`). Omit kinds without lines."""
    problem = answer.get("problem")
    kinds = (
        [f"problem: {problem}"] if problem else [],
        _reload_lines(answer),
        offline_lines(answer),
        _first_lines(answer, "uncleanable", "not compacted", "{topic}-{partition}: {reason}"),
        _unserved_lines(answer),
    )
    return [lines for lines in kinds if lines]


def _reload_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return a line if the last SIGHUP could not put the configuration file or the certificates into force."""
    reload = answer.get("last_reload")
    if not reload or not reload["problem"]:
        return []
    return [f"the last reload ({_second(reload['at_ms'])}) failed: {reload['problem']}"]


def offline_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return a line for each offline partition that the status lists, and a line with the number of further ones."""
    return _first_lines(answer, "offline", "offline", "{topic}-{partition} at handler {handler}: {reason}")


def _unserved_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return a line for each partition directory that no topic uses, and a line on how to recover its records."""
    lines = _first_lines(answer, "unserved_directories", "not served", "{directory}: {reason}")
    return [*lines, f"these directories of {answer['data']}: {WAY_OUT}"] if lines else []


def _first_lines(answer: Mapping[str, Any], key: str, label: str, words: str) -> list[str]:
    """Return a line `label: words` for each listed row of answer[key], and one with the number of further rows.

    words: a template for the row's fields.
    """
    found = answer.get(key)
    if not found or not found["count"]:
        return []
    lines = [f"{label}: {words.format_map(row)}" for row in found["first"]]
    more = found["count"] - len(lines)
    return [*lines, f"{label}: {more} more"] if more else lines


def _format_count(count: int | None, internal: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count} (and {internal} internal)" if internal else str(count)


def _address(listener: Any) -> str:
    return str(listener["advertised"] if isinstance(listener, dict) else listener)


def _second(wall_ms: int) -> str:
    return datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _day(wall_ms: int) -> str:
    return datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC).strftime("%Y-%m-%d")
