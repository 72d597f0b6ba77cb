"""Each way to get the history wrong is noticed by the random fleets of `history_world`: so these tests can fail."""

from collections.abc import Collection, Mapping

import pytest
from tests.recovery.history_world import execute

from snapline.errors import ProtocolError, UsageError
from snapline.recovery import dependency_history, dependency_records
from snapline.recovery import dependency_history as history_module
from snapline.recovery.dependency_history import Climb, FleetHistory, HistoryImage, Line, TotalLine
from snapline.recovery.dependency_records import (
    LIVE,
    Channel,
    Column,
    CountChanges,
    IntervalGraph,
    Records,
    Reported,
    descend,
    last_place_within,
    single_failures,
)

SEEDS = (*range(100), 192, 552)
"""The last two find what the others do not: `OnlyTheFirstCheckpointOfAClimbCounts` and `WhatIsKnownIsTakenForTheState`."""


def assert_is_caught(make: type[FleetHistory] = FleetHistory, *, is_exact: bool = False, about: str = ".") -> None:
    """Some random fleet comes to a wrong answer, for the reason `about`."""
    with pytest.raises((AssertionError, ProtocolError, UsageError), match=about):
        for seed in SEEDS:
            execute(seed, make, is_exact=is_exact)


# -- lines ------------------------------------------------------------------------------------------------------------


def test_received_at_least_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_most_less(records: Records, channel: Channel, sent: int, place: int, received: Reported) -> int:
        return last_place_within(records, channel, sent - 1, place, received)

    monkeypatch.setattr(dependency_records, "last_place_within", at_most_less)
    assert_is_caught(about="line")


def test_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_pass(records: Records, places: list[int], received: Reported, sent: Reported | None = None) -> None:
        start = list(places)
        for channel in records.all_channels():
            if start[channel.sender] != LIVE:
                count = channel.sent.by(start[channel.sender])
                receiver = channel.receiver
                places[receiver] = last_place_within(records, channel, count, places[receiver], received)

    monkeypatch.setattr(history_module, "descend", one_pass)
    assert_is_caught(about="line")


class LiveStatesLeftOut(FleetHistory):
    def _live_received(self) -> dict[Channel, int]:
        return {}


class SurvivorsSentOnlyWhatTheyReported(FleetHistory):
    def line(self, failed: Collection[str]) -> Line:
        places = [LIVE] * len(self._records.names)
        for agent in failed:
            places[self._member(agent)] = self._records.last[self._member(agent)]
        sent: dict[Channel, int] = {}
        for live in self._live.values():
            sent |= live.sent
        descend(self._records, places, self._live_received(), sent)
        return self._as_line(places)


class FailedKeepTheirLiveState(FleetHistory):
    def line(self, failed: Collection[str]) -> Line:
        found = super().line(failed).checkpoints
        return Line({agent: None if agent in failed and agent in self._stay() else found[agent] for agent in found})

    def _stay(self) -> list[str]:
        return [self._records.names[agent] for agent in self._live]


@pytest.mark.parametrize("mutant", [LiveStatesLeftOut, SurvivorsSentOnlyWhatTheyReported, FailedKeepTheirLiveState])
def test_lines(mutant: type[FleetHistory]) -> None:
    assert_is_caught(mutant, about="line")


def test_intervals_do_not_undo_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unchained(IntervalGraph):
        def __init__(self, records: Records, ends: list[int], received: Reported) -> None:
            super().__init__(records, ends, received)
            self.next_nodes = [[o for o in others if o != node + 1] for node, others in enumerate(self.next_nodes)]

    monkeypatch.setattr(dependency_records, "IntervalGraph", Unchained)
    assert_is_caught(about="lines")


def test_one_edge_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_edge(next_nodes: list[list[int]]) -> list[int]:
        return [1 << node | sum(1 << o for o in set(others)) for node, others in enumerate(next_nodes)]

    monkeypatch.setattr(dependency_records, "reachable_sets", one_edge)
    assert_is_caught(about="lines")


class WhatLiveSendersSentIsLeftOut(FleetHistory):
    def in_transit(self, line: Line) -> dict[tuple[str, str], range]:
        found = super().in_transit(line)
        return {(i, j): numbers for (i, j), numbers in found.items() if line.checkpoints[i] is not None}


class TheLinkHoldsWhatReachesSurvivors(FleetHistory):
    def in_transit(self, line: Line) -> dict[tuple[str, str], range]:
        found = super().in_transit(line)
        return {(i, j): numbers for (i, j), numbers in found.items() if line.checkpoints[j] is not None}


@pytest.mark.parametrize("mutant", [WhatLiveSendersSentIsLeftOut, TheLinkHoldsWhatReachesSurvivors])
def test_in_transit(mutant: type[FleetHistory]) -> None:
    assert_is_caught(mutant, about="in_transit")


# -- the total line ---------------------------------------------------------------------------------------------------


class NoneElseIsLookedAt(TotalLine):
    def checkpoint_added(self, agent: int) -> None:
        self.grow()
        self._settle([agent])


class AnAdvanceFreesNobody(TotalLine):
    def _advance(self, climb: Climb) -> list[int]:
        advanced = {agent for agent, number in climb.levels.items() if number > self.places[agent]}
        return [agent for agent in super()._advance(climb) if agent in advanced]


class OnlyTheFirstCheckpointOfAClimbCounts(TotalLine):
    def _raise(self, climb: Climb, agent: int, number: int) -> dependency_history.Missing | int | None:
        return super()._raise(climb, agent, self._records.after(agent, self.places[agent]))


@pytest.mark.parametrize(
    "mutant",
    [NoneElseIsLookedAt, AnAdvanceFreesNobody, OnlyTheFirstCheckpointOfAClimbCounts],
)
def test_the_total_line(mutant: type[TotalLine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant, "validate", lambda self: None)
    monkeypatch.setattr(history_module, "TotalLine", mutant)
    assert_is_caught()


# -- garbage ----------------------------------------------------------------------------------------------------------


class Careless(FleetHistory):
    """Deletes what `named` says, without the guard of `forget`; only the newest is kept in any case."""

    def forget(self, agent: str, numbers: Collection[int]) -> None:
        for number in numbers:
            self._records.forget(self._member(agent), number)
        self._total.checkpoints_forgotten()

    def obsolete(self) -> dict[str, list[int]]:
        newest = {agent: self.checkpoints_of(agent)[-1] for agent in self.total_line()}
        return {agent: [n for n in numbers if n < newest[agent]] for agent, numbers in self.named().items()}

    def named(self) -> dict[str, list[int]]:
        raise NotImplementedError

    def by_exact_rule(self, ends: list[int], above: list[int]) -> dict[str, list[int]]:
        rows = single_failures(self._records, ends, self._live_received())
        return {
            agent: [n for n in self.checkpoints_of(agent) if n <= above[i] and all(row[i] != n for row in rows)]
            for i, agent in self._members()
        }


class KeepsOnlyTheLatest(Careless):
    def named(self) -> dict[str, list[int]]:
        return {agent: self.checkpoints_of(agent) for agent in self.total_line()}


class KeepsOnlyTodaysTotalLine(Careless):
    def named(self) -> dict[str, list[int]]:
        return {
            agent: [number for number in self.checkpoints_of(agent) if number != place]
            for agent, place in self.total_line().items()
        }


class WhatIsKnownIsTakenForTheState(Careless):
    """The exact rule without the greatest consistent cut."""

    def named(self) -> dict[str, list[int]]:
        return self.by_exact_rule(self._records.last, self._records.last)


class DeletesAboveTheCut(Careless):
    def named(self) -> dict[str, list[int]]:
        cut = list(self._records.last)
        descend(self._records, cut, {}, {})
        return self.by_exact_rule(cut, self._records.last)


class LiveStatesBehindUnwrittenCheckpointsCount(FleetHistory):
    def report_live(
        self,
        agent: str,
        received: Mapping[str, int],
        sent: Mapping[str, int] = {},
        turns: int = 0,
        taken: int | None = None,
    ) -> None:
        super().report_live(agent, received, sent, turns)


@pytest.mark.parametrize(
    "mutant",
    [
        KeepsOnlyTheLatest,
        KeepsOnlyTodaysTotalLine,
        WhatIsKnownIsTakenForTheState,
        DeletesAboveTheCut,
        LiveStatesBehindUnwrittenCheckpointsCount,
    ],
)
def test_garbage(mutant: type[FleetHistory]) -> None:
    """Not the list is compared here: a later line needs what was deleted."""
    assert_is_caught(mutant, about="line")


def test_counts_of_forgotten_checkpoints_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(column: Column, number: int, successor: int) -> None:
        place = column.at.index(number)
        del column.at[place], column.counts[place]

    def heirs_alone(successor: CountChanges, gone: CountChanges) -> CountChanges:
        return successor

    monkeypatch.setattr(dependency_records, "_move_count", lose)
    monkeypatch.setattr(dependency_records, "_combined_changes", heirs_alone)
    assert_is_caught()


# -- recoveries -------------------------------------------------------------------------------------------------------


class LiveReportsOutliveARollback(FleetHistory):
    def roll_back(self, line: Line) -> None:
        live = dict(self._live)
        super().roll_back(line)
        self._live = live


class OnlyTheFailedAreSetBack(FleetHistory):
    failed: Collection[str] = ()

    def line(self, failed: Collection[str]) -> Line:
        self.failed = failed
        return super().line(failed)

    def roll_back(self, line: Line) -> None:
        super().roll_back(Line({agent: line.checkpoints[agent] for agent in self.failed}))


class LiveReportsAreLostAtARestart(FleetHistory):
    @classmethod
    def restore(cls, image: HistoryImage) -> "LiveReportsAreLostAtARestart":
        made = super().restore(image)
        made._live.clear()
        return made


@pytest.mark.parametrize("mutant", [LiveReportsOutliveARollback, OnlyTheFailedAreSetBack, LiveReportsAreLostAtARestart])
def test_recoveries(mutant: type[FleetHistory]) -> None:
    assert_is_caught(mutant, is_exact=True)
