"""The options of `kproc consume`, in groups: range to read, group membership, and records to print."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from kproc.cli.common import usage_error
from kproc.cli.completion import complete_groups, complete_topics
from kproc.cli.patterns import RecordFilter
from kproc.cli.positions import Where, parse_where


class Isolation(StrEnum):
    """The isolation level: show all records, or only those of committed transactions."""

    UNCOMMITTED = "read-uncommitted"
    COMMITTED = "read-committed"


class GroupProtocol(StrEnum):
    """The protocol with which the command is a member of a group."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


SkipUnreadable = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="Skip batches that cannot be read and print a line for each. Default: stop and print the offset.",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="Format as in kcat: %t %p %o %k %s %h %T, \\n \\t; or json, the input of produce --json. "
        "[default: %s\\n; with several topics %t\\t%s\\n]",
    ),
]
Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC",
        help="Topics to read. 'orders-*' or '^orders-[0-9]' stand for the topics that match now.",
        autocompletion=complete_topics,
    ),
]
Start = Annotated[
    str,
    typer.Option(
        "--from",
        "-o",
        metavar="WHERE",
        help="beginning, end, an offset, -N (the last N of each), @MILLISECONDS or an ISO 8601 time; "
        "with --group only where nothing is committed.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE", help="Stop before this position, given as for --from. [default: the present end]"
    ),
]
KeyPattern = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Only records whose key has a match of this regular expression."),
]
ValuePattern = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Only records whose value has a match of this regular expression."),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        "-F",
        help="Wait for more records at the end, and for an unreachable broker. Implied by --from end.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="Read as a member of this group: continue at its offsets and commit printed records.",
        autocompletion=complete_groups,
    ),
]
# The default is the classic protocol, which all brokers have. It does not convert a classic group, and its session
# timeout of 10 s removes a killed command soon. In the consumer protocol the group's timeout applies, by default 45 s.
Protocol = Annotated[
    GroupProtocol,
    typer.Option(
        help="Protocol of the member. consumer: that of KIP-848, in which members keep their partitions during a "
        "rebalance. A classic group becomes a consumer group when the first such member joins."
    ),
]
Share = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Read as a member of this share group (a queue). Printed records are accepted: no member gets them again.",
        autocompletion=complete_groups,
    ),
]
Reject = Annotated[
    bool, typer.Option("--reject", help="With --share: reject printed records. No member gets them again.")
]
Release = Annotated[
    bool,
    typer.Option(
        "--release", help="With --share: give printed records back to the group. Each is printed once."
    ),
]
RecordCount = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")
]
IsolationLevel = Annotated[
    Isolation,
    typer.Option(help="read-committed: without aborted transactions, up to the first open one."),
]


@dataclass(frozen=True)
class ReadRange:
    """The options for where reading starts and when it stops."""

    start: Start = "beginning"
    until: Until = None
    count: RecordCount = None
    follow: Follow = False

    @property
    def where(self) -> Where:
        """The position of --from."""
        return parse_where("--from", self.start)

    @property
    def is_endless(self) -> bool:
        """True if the command waits for new records when it has reached the end (--follow or --from end)."""
        return self.follow or self.where == "end"

    def parse_until(self) -> Where:
        """Parse --until, which is by default the present end. Raise a usage error if it is combined with --follow."""
        if self.until is None:
            return "end"
        until = parse_where("--until", self.until)
        if self.is_endless:
            usage_error(
                "--until stops the command, but --follow and --from end wait for more records: leave one out"
            )
        return until


@dataclass(frozen=True)
class GroupMembership:
    """The options of a member of a classic or consumer group. Without --group the command does not join a group."""

    group: Group = None
    protocol: Protocol = GroupProtocol.CLASSIC

    def validate(self, partitions: list[int] | None) -> None:
        """Raise a usage error for options that exclude or need each other."""
        if self.group is not None and partitions:
            usage_error("--group and --partition exclude each other: the group says who reads what")
        if self.group == "":
            usage_error("--group: must not be empty")
        if self.group is None and self.protocol is not GroupProtocol.CLASSIC:
            usage_error(f"--protocol {self.protocol} is for members of a group: add --group")


@dataclass(frozen=True)
class ShareMembership:
    """The options of a member of a share group."""

    share: Share = None
    reject: Reject = False
    release: Release = False

    @property
    def is_given(self) -> bool:
        """True if one of the options is given."""
        return self.share is not None or self.reject or self.release


@dataclass(frozen=True)
class RecordPatterns:
    """The options --key and --grep, which select records by regular expressions."""

    key: KeyPattern = None
    grep: ValuePattern = None

    def compile(self) -> RecordFilter | None:
        """Return the filter for records, or None if no pattern is given, so that every record is printed."""
        return RecordFilter(self.key, self.grep) if self.key is not None or self.grep is not None else None
