"""consume_options.py: options of `kproc consume` that exclude or need each other."""

from __future__ import annotations

import pytest

from kproc.cli.consume_options import (
    GroupMembership,
    GroupProtocol,
    ReadRange,
    RecordPatterns,
    ShareMembership,
)
from kproc.cli.failure import Failure


def test_reading_is_endless_with_follow_or_from_the_end() -> None:
    assert ReadRange(follow=True).is_endless
    assert ReadRange(start="latest").is_endless
    assert not ReadRange(start="5").is_endless


def test_until_is_the_end_by_default_and_excludes_following() -> None:
    assert ReadRange().parse_until() == "end"
    assert ReadRange(until="7").parse_until() == 7
    with pytest.raises(Failure, match="--until stops the command"):
        ReadRange(until="7", start="end").parse_until()


@pytest.mark.parametrize(
    ("member", "partitions", "error"),
    [
        (GroupMembership("g"), [1], "--group and --partition exclude each other"),
        (GroupMembership(""), None, "--group: must not be empty"),
        (
            GroupMembership(None, GroupProtocol.CONSUMER),
            None,
            "--protocol consumer is for members of a group",
        ),
    ],
)
def test_options_of_a_member_are_validated(
    member: GroupMembership, partitions: list[int] | None, error: str
) -> None:
    with pytest.raises(Failure, match=error):
        member.validate(partitions)
    GroupMembership().validate([1])
    GroupMembership("g", GroupProtocol.CONSUMER).validate(None)


def test_share_options_are_given_if_one_of_them_is() -> None:
    assert not ShareMembership().is_given
    assert ShareMembership(share="").is_given
    assert ShareMembership(release=True).is_given


def test_patterns_compile_to_a_filter_if_one_is_given() -> None:
    assert RecordPatterns().compile() is None
    assert RecordPatterns(grep="x").compile() is not None
