"""Checkpoints without Spark: how far queries are, the lock, what a reset removes, the trap of the file sink."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproc.cli.consent import Consent
from kproc.cli.pipeline import reset
from kproc.pipeline import status
from kproc.pipeline.checkpoint import as_json, check_file_logs, lag_of, plan_reset, query_state, topic_offsets
from kproc.pipeline.errors import PipelineError
from kproc.pipeline.model import Pipeline
from kproc.pipeline.spec import parse_spec
from kproc.pipeline.status import Extent
from kproc.pipeline.toml_table import SpecError
from tests.support.cases import in_one_test

SPEC = """
[pipeline]
name = "p"
checkpoint = "state"

[[source]]
name = "t"
topic = "t"

[[sink]]
name = "lake"
input = "t"
parquet = "lake"
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return parse_spec(SPEC, tmp_path / "p.toml")


def write_batches(directory: Path, committed: int, planned: int) -> None:
    """A query's checkpoint as Spark leaves it."""
    for folder, last in (("offsets", planned), ("commits", committed)):
        (directory / folder).mkdir(parents=True)
        for number in range(last + 1):
            head = {"batchWatermarkMs": 1000 * number, "batchTimestampMs": 5, "conf": {}}
            lines = ["v1", json.dumps(head), json.dumps({"t": {"0": 10 * number, "1": 7}}), '{"logOffset":3}']
            (directory / folder / str(number)).write_text("\n".join(lines))
            (directory / folder / f".{number}.crc").write_bytes(b"crc")


def test_a_query_is_as_far_as_its_last_commit(pipeline: Pipeline, tmp_path: Path) -> None:
    write_batches(tmp_path / "state" / "lake", committed=11, planned=12)
    state = query_state(tmp_path / "state", pipeline.sinks[0])
    assert (state.committed, state.planned, state.watermark_ms) == (11, 12, 11_000)
    assert (state.offsets, state.others) == ({"t": {0: 110, 1: 7}}, ['{"logOffset":3}'])
    assert as_json(state)["offsets"] == {"t": {"0": 110, "1": 7}}, "JSON has no other keys than strings"
    assert lag_of(state.offsets, {"t": {0: 115, 1: 7, 2: 4}}) == 9, "a partition not begun counts whole"


def test_a_query_that_never_ran_has_no_batch(pipeline: Pipeline, tmp_path: Path) -> None:
    state = query_state(tmp_path / "state", pipeline.sinks[0])
    assert (state.committed, state.planned, state.offsets) == (None, None, {})


def test_damaged_checkpoint_raises_pipeline_error(pipeline: Pipeline, tmp_path: Path) -> None:
    write_batches(tmp_path / "state" / "lake", committed=0, planned=0)
    for text in (
        "",
        "v9\n{}\n",
        "v1\n",
        "v1\n{torn",
        "v1\n[]\n",
        "v1\n" + "[" * 100_000,
        'v1\n{"batchWatermarkMs":null}',
    ):
        (tmp_path / "state" / "lake" / "offsets" / "0").write_text(text)
        with pytest.raises(PipelineError, match="not what Spark writes"):
            query_state(tmp_path / "state", pipeline.sinks[0])
    (tmp_path / "state" / "lake" / "offsets" / "0").write_bytes(b"v1\n\xff\xfe")
    with pytest.raises(PipelineError, match="not what Spark writes"):
        query_state(tmp_path / "state", pipeline.sinks[0])
    (tmp_path / "state" / "lake" / "offsets" / "0").unlink()
    with pytest.raises(PipelineError, match="batch 0 has no offsets"):
        query_state(tmp_path / "state", pipeline.sinks[0])


@in_one_test(
    "text", ["-", "17", '{"logOffset":0}', '{"t":{"x":1}}', '{"t":{"0":"1"}}', "[]", "{}", "[" * 100_000]
)
def test_offsets_of_other_sources_are_none_of_topics(text: str) -> None:
    assert topic_offsets(text) is None


def test_sources_metadata_beside_offsets_is_no_topic() -> None:
    assert topic_offsets('{"@start":{"t":{"0":0}},"t":{"0":5}}') == {"t": {0: 5}}


def test_a_new_query_into_the_log_of_another_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    log = tmp_path / "lake" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "9.compact").touch()
    with pytest.raises(
        SpecError, match=r"p\.toml:13: sink\[1\]\.parquet: .*batches up to 9 of another checkpoint"
    ):
        check_file_logs(pipeline, tmp_path / "state")
    # The batch that was planned, written and not committed is done again by the same query: no mistake.
    write_batches(tmp_path / "state" / "lake", committed=8, planned=9)
    check_file_logs(pipeline, tmp_path / "state")


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_reset_removes_state_and_sets_file_log_aside(tmp_path: Path, prefix: str) -> None:
    target = f'parquet = "{prefix}{tmp_path}/lake"' if prefix else 'parquet = "lake"'
    pipeline = parse_spec(SPEC.replace('parquet = "lake"', target), tmp_path / "p.toml")
    write_batches(tmp_path / "state" / "lake", committed=1, planned=1)
    initial = tmp_path / "state" / ".kproc" / "sources" / "lake"
    initial.mkdir(parents=True)
    log = tmp_path / "lake" / "_spark_metadata"
    log.mkdir(parents=True)
    (log / "1").touch()
    (tmp_path / "lake" / "part-0.parquet").touch()
    plan = plan_reset(pipeline, tmp_path / "state", pipeline.sinks)
    assert plan.removed == [tmp_path / "state" / "lake", initial]
    plan.carry_out()
    assert not (tmp_path / "state" / "lake").exists()
    assert not initial.exists()
    assert (tmp_path / "lake" / "part-0.parquet").exists()
    [aside] = (tmp_path / "lake").glob("_spark_metadata*")
    assert aside.name.startswith("_spark_metadata.")
    check_file_logs(pipeline, tmp_path / "state")
    assert not plan_reset(pipeline, tmp_path / "state", pipeline.sinks)


def test_reset_removes_damaged_checkpoint_behind_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged checkpoint is a reason for a reset. Of a link to another disk the link goes."""
    (tmp_path / "p.toml").write_text(SPEC)
    write_batches(tmp_path / "disk", committed=0, planned=0)
    (tmp_path / "disk" / "offsets" / "0").write_bytes(b"v1\n\xff\xfe")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lake").symlink_to(tmp_path / "disk")
    reset(tmp_path / "p.toml", None, Consent(yes=True))
    assert "lake: last batch unknown: " in capsys.readouterr().out
    assert not (tmp_path / "state" / "lake").is_symlink()


def lag_and_warnings(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, zero: Extent, one: Extent
) -> tuple[int | None, list[str]]:
    """Return them for a topic `t` whose two partitions have these extents."""
    monkeypatch.setattr(status, "log_extents", lambda _bootstrap, _topics: {"t": {0: zero, 1: one}})
    answer = status.pipeline_status(pipeline)
    return answer["rows"][0]["lag"], answer["warnings"]


def test_lag_is_unknown_where_broker_lost_processed_records(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batches(tmp_path / "state" / "lake", committed=3, planned=3)  # 30 of partition 0, 7 of partition 1.
    assert lag_and_warnings(pipeline, monkeypatch, Extent(0, 33), Extent(0, 8)) == (4, [])
    lag, [warning] = lag_and_warnings(pipeline, monkeypatch, Extent(0, 5), Extent(0, 7))
    assert lag is None
    assert warning.startswith(
        "lake: t partition 0: 30 is committed, and the log ends at 5: records were lost"
    )
    monkeypatch.setattr(status, "log_extents", lambda _bootstrap, _topics: {})
    answer = status.pipeline_status(pipeline)
    assert (answer["rows"][0]["lag"], answer["warnings"]) == (None, ["127.0.0.1:9092 has no topic t"])


def test_lag_after_deletion_is_end_minus_committed_offset(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kproc group describe`, the metrics and Kafka's tools show this number for the same offsets, too."""
    write_batches(tmp_path / "state" / "lake", committed=3, planned=3)  # 30 of partition 0, 7 of partition 1.
    assert lag_and_warnings(pipeline, monkeypatch, Extent(0, 30), Extent(10, 12)) == (
        5,
        ["lake: t partition 1: 3 records were deleted before they were read"],
    )
