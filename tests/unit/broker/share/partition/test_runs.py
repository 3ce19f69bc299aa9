"""Runs: changes of some offsets divide and join runs, and agree with a dict that has a state for each offset."""

from __future__ import annotations

import random

from kproc.broker.share.partition.runs import Run, Runs
from kproc.broker.share.state.messages import RecordState

STATES = (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


def run(first: int, last: int, state: RecordState = RecordState.AVAILABLE) -> Run:
    return Run(first, last, state, 0, 10)


def spans(runs: Runs) -> list[tuple[int, int, RecordState]]:
    return [(each.first, each.last, each.state) for each in runs]


def test_append_extends_the_last_run_if_it_is_alike() -> None:
    runs = Runs()
    assert (len(runs), runs.last, runs.find(0)) == (0, None, None)
    runs.append(run(5, 9))
    runs.append(run(10, 14))
    runs.append(run(15, 19, RecordState.ARCHIVED))
    assert spans(runs) == [(5, 14, RecordState.AVAILABLE), (15, 19, RecordState.ARCHIVED)]
    assert [each and each.first for each in map(runs.find, (4, 5, 14, 15, 20))] == [None, 5, 5, 15, None]


def test_cut_begins_a_run_at_each_given_offset() -> None:
    runs = Runs()
    runs.append(run(0, 9))
    assert [(each.first, each.last) for each in runs.cut(2, 7, begins=[4, 5])] == [(2, 3), (4, 4), (5, 7)]
    assert [(each.first, each.last) for each in runs] == [(0, 1), (2, 3), (4, 4), (5, 7), (8, 9)]
    assert runs.cut(7, 6) == []
    runs.join(0, 9)
    assert spans(runs) == [(0, 9, RecordState.AVAILABLE)]


def test_changes_of_runs_agree_with_a_dict() -> None:
    chance = random.Random(5)
    runs, model = Runs(), {}
    for first in range(100, 200, 10):
        state = chance.choice(STATES)
        runs.append(run(first, first + 9, state))
        model.update(dict.fromkeys(range(first, first + 10), state))
    for _ in range(300):
        first = chance.randrange(100, 200)
        last = chance.randrange(first, 200)
        state = chance.choice(STATES)
        overlapping = runs.overlapping(first, last)
        assert overlapping[0].first <= first
        assert overlapping[-1].last >= last
        changed = runs.cut(first, last)
        assert (changed[0].first, changed[-1].last) == (first, last)
        for each in changed:
            each.state = state
        runs.join(first, last)
        model.update(dict.fromkeys(range(first, last + 1), state))
        shown = {offset: each.state for each in runs for offset in range(each.first, each.last + 1)}
        assert shown == model
        assert sum(each.size for each in runs) == len(model), "no offset is in two runs"
        pairs = zip(list(runs), list(runs)[1:], strict=False)
        assert not any(one.is_like(other) for one, other in pairs)


def test_remove_first_returns_the_removed_runs() -> None:
    runs = Runs()
    runs.append(run(0, 4))
    runs.append(run(5, 9, RecordState.ARCHIVED))
    assert [each.first for each in runs.remove_first(1)] == [0]
    assert spans(runs) == [(5, 9, RecordState.ARCHIVED)]
