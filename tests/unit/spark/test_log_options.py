"""Options of reads of segment files."""

from __future__ import annotations

import pytest

from kproc.broker.storage.log import Log
from kproc.spark.log_options import LogOptions
from kproc.spark.log_plan import plan
from tests.support.logs import LogRig

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

# -- options and plans


def options(rig: LogRig, **given: str) -> LogOptions:
    return LogOptions.parse({"path": str(rig.directory.parent), "topics": "t", **given})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topics": "t,u"}, "there is no topic u in "),
        (
            {"startingOffsets": '{"t": {"0": 301}}'},
            "startingOffsets: t-0 in .* has no offset 301, it has 0 to 300",
        ),
        (
            {"startingOffsets": '{"t": {"1": 0}}'},
            "startingOffsets must name every partition: without t-0; there is no t-1",
        ),
        ({"endingOffsets": "earliest"}, "endingOffsets='earliest' is neither latest nor offsets"),
        ({"startingOffsets": "latest"}, "startingOffsets='latest' is neither earliest nor offsets"),
        ({"topicsPattern": "t"}, "give exactly one of the options topics and topicsPattern"),
        ({"subscribe": "t"}, "option subscribe is not supported: it is topics here"),
        ({"maxPartitionBytes": "0"}, "maxPartitionBytes must be at least 1"),
        ({"maxPartitionBytes": "9" * 5000}, "maxPartitionBytes must be like"),
        ({"startingTimestamp": "-1"}, "startingTimestamp must be at least 0, not -1"),
        ({"startingTimestamp": "9" * 5000}, "startingTimestamp must be a whole number, not"),
        ({"path": "/nowhere/at/all"}, "path /nowhere/at/all cannot be read: No such file"),
        ({"path": ""}, "path is empty"),
        ({"isolation.level": "serializable"}, "isolation.level must be read_uncommitted or read_committed, not"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp must be a whole number, not"),
    ],
)
def test_invalid_log_options_are_rejected_in_one_line(rig: LogRig, log: Log, given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        plan(options(rig, **given))
    assert "\n" not in str(caught.value)


def test_a_partitions_own_directory_is_not_the_data_directory(rig: LogRig, log: Log) -> None:
    with pytest.raises(ValueError, match="is a partition's directory: give the one that it lies in"):
        plan(options(rig, path=str(rig.directory)))
