"""Local recovery, explored: no run of a small fleet undoes a survivor's turn, and each broken rule is found.

A mutant breaks one rule of the model. The numbers of states are pinned: another number is another model.
"""

from typing import Any

import pytest
from tests.sim.local_recovery import (
    AgentState,
    CoordinatorNode,
    HostNode,
    LinkItem,
    LocalRecoveryModel,
    OpenItem,
    Record,
)

from snapline.sim.explorer.cuts import Numbers
from snapline.sim.explorer.state_search import Bounds, Search, SearchResult

ONE_CRASH = Bounds(agents=2)
TWO_CRASHES = Bounds(agents=2, crashes=2)
QUIET = Bounds(agents=2, crashes=0)
TOGETHER = (0, 0)
"""Both agents on the first of two hosts."""


def explored(model: LocalRecoveryModel) -> SearchResult:
    return Search(model, 5_000_000).run()


def check_sound(model: LocalRecoveryModel) -> SearchResult:
    found = explored(model)
    assert found.fault is None, "\n".join([str(found.fault), *found.path])
    assert found.is_complete
    return found


# -- all is well --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "homes", "settings", "states"),
    [
        (QUIET, (), {}, 248),
        (ONE_CRASH, (), {}, 15_496),
        (ONE_CRASH, TOGETHER, {}, 24_764),
        (QUIET, (), {"moves": 1}, 32_266),
        (QUIET, TOGETHER, {"moves": 1}, 13_642),
        (QUIET, (), {"epochs": 1}, 20_485),
        pytest.param(TWO_CRASHES, (), {}, 530_643, marks=pytest.mark.slow),
        pytest.param(Bounds(agents=2, sends=2), (), {}, 1_434_687, marks=pytest.mark.slow),
        pytest.param(ONE_CRASH, (), {"moves": 1}, 1_187_497, marks=pytest.mark.slow),
        pytest.param(ONE_CRASH, TOGETHER, {"moves": 1}, 1_170_183, marks=pytest.mark.slow),
        pytest.param(ONE_CRASH, (), {"epochs": 1}, 540_233, marks=pytest.mark.slow),
        pytest.param(ONE_CRASH, TOGETHER, {"epochs": 1}, 358_256, marks=pytest.mark.slow),
    ],
)
def test_every_run_keeps_every_promise(bounds: Bounds, homes: Numbers, settings: dict[str, int], states: int) -> None:
    found = check_sound(LocalRecoveryModel(bounds, homes, hosts=2, **settings))
    assert found.states == states


def test_what_is_explored_is_not_trivial() -> None:
    model = LocalRecoveryModel(TWO_CRASHES)
    Search(model, 60_000).run()
    steps = set(model.labels.values)
    assert {"host 0 crashes", "host 1 is evicted", "a plan moves a to host 0, b to host 0"} <= steps
    found = model.coordinators.values
    assert any(len(sources) > 2 for each in found for sources in each.sources), "moved again before a commit"
    assert any(log.is_sealed and log.record for each in found for log in each.logs)
    hosts = [node for nodes in model.nodes for node in nodes.values]
    opened = [each for node in hosts for items in node.links for each in items if isinstance(each, OpenItem)]
    assert any(item.first > 1 for item in opened), "messages that were acknowledged are not sent again"
    evicted = {run for each in found for run in each.lost}
    assert any(node.run in evicted and node.commit is not None for node in hosts), "an evicted run goes on"


# -- mutants ------------------------------------------------------------------------------------------------------------


class AcknowledgesWhatIsNotCommitted(LocalRecoveryModel):
    def acknowledged(self, durable: AgentState, now: AgentState, sender: int) -> int:
        return len(now.consumed[sender])


class AcknowledgesWhatHasArrived(LocalRecoveryModel):
    def acknowledged(self, durable: AgentState, now: AgentState, sender: int) -> int:
        return now.arrived(sender)


class ForgetsMessagesWithinTheHost(LocalRecoveryModel):
    def acked_within(self, state: AgentState, receiver_state: AgentState, receiver: int, sender: int) -> int:
        return len(state.sent[receiver])


class SendsBeforeTheCommit(LocalRecoveryModel):
    def sends_at_once(self) -> bool:
        return True


class SendsMoreThanTheCommitHolds(LocalRecoveryModel):
    def departing(self, durable: AgentState, now: AgentState, receiver: int) -> int:
        return len(now.sent[receiver])


class SendsAgainOnlyWhatIsNew(LocalRecoveryModel):
    def first_resent(self, state: AgentState, receiver: int) -> int:
        return state.departed[receiver] + 1


class TakesDuplicates(LocalRecoveryModel):
    def is_duplicate(self, state: AgentState, sender: int, number: int) -> bool:
        return False


class RefusesAgentsThatAreLoading(LocalRecoveryModel):
    """An opening for an agent that is not loaded yet is dropped, with the messages after it."""

    def _waits(self, node: HostNode, item: LinkItem) -> bool:
        return False


class SealsTheLogsOfSurvivors(LocalRecoveryModel):
    def sealed_by(self, found: CoordinatorNode, logs: Numbers) -> Numbers:
        return tuple(log.run for log in found.logs)


class SealsNothing(LocalRecoveryModel):
    def sealed_by(self, found: CoordinatorNode, logs: Numbers) -> Numbers:
        return ()


class NamesOnlyTheNewLog(LocalRecoveryModel):
    def sources_after(self, sources: Numbers, run: int) -> Numbers:
        return (run,)


class LoadsTheOldestRecord(LocalRecoveryModel):
    def newest(self, states: list[AgentState]) -> AgentState:
        return states[min(1, len(states) - 1)]


class DeletesNewerRecords(LocalRecoveryModel):
    def may_be_deleted(self, record: Record, base: Record) -> bool:
        return True


class LoadsRecordsBeforeEpochs(LocalRecoveryModel):
    """A record in a log is loaded although the base is newer, because its entry stayed."""

    def newest(self, states: list[AgentState]) -> AgentState:
        return max(states[1:], key=lambda state: len(state.turns), default=states[0])


class ForgetsChannelStates(LocalRecoveryModel):
    """A loaded agent gets no messages from the channel state of the base."""

    def in_transit(self, base: AgentState, consumed: Numbers, sender: int) -> Numbers:
        return ()


class CompletesBeforeMarkers(LocalRecoveryModel):
    """An epoch is complete although messages before its markers have not arrived."""

    def is_complete(self, captured: Record, live: list[AgentState]) -> bool:
        return True


class RecordsAgentsOneByOne(LocalRecoveryModel):
    """A record holds the agent with the most turns, and the others as they were at the start."""

    def recorded(self, node: HostNode) -> Record:
        record = super().recorded(node)
        newest = max((state for state in record if state is not None), key=lambda state: len(state.turns), default=None)
        return tuple(state if state is newest else None for state in record)


class GoesOnAfterLeaving(LocalRecoveryModel):
    """An agent that was committed as left still takes turns."""

    def is_at_rest(self, node: HostNode, agent: int) -> bool:
        return False


class ForgetsAgentsThatLeft(LocalRecoveryModel):
    """An agent that has left is not in the host's later records."""

    def recorded(self, node: HostNode) -> Record:
        record = super().recorded(node)
        return tuple(state if here is not None else None for state, here in zip(record, node.agents, strict=True))


MUTANTS: list[tuple[type[LocalRecoveryModel], dict[str, Any]]] = [
    (AcknowledgesWhatIsNotCommitted, {"bounds": ONE_CRASH}),
    (AcknowledgesWhatHasArrived, {"bounds": ONE_CRASH}),
    (ForgetsMessagesWithinTheHost, {"bounds": ONE_CRASH, "homes": TOGETHER}),
    (SendsBeforeTheCommit, {"bounds": ONE_CRASH}),
    (SendsMoreThanTheCommitHolds, {"bounds": Bounds(agents=2, sends=2)}),
    (SendsAgainOnlyWhatIsNew, {"bounds": ONE_CRASH}),
    (TakesDuplicates, {"bounds": ONE_CRASH}),
    (RefusesAgentsThatAreLoading, {"bounds": ONE_CRASH}),
    (SealsTheLogsOfSurvivors, {"bounds": ONE_CRASH}),
    (SealsNothing, {"bounds": ONE_CRASH}),
    (NamesOnlyTheNewLog, {"bounds": TWO_CRASHES}),
    (LoadsTheOldestRecord, {"bounds": TWO_CRASHES}),
    (DeletesNewerRecords, {"bounds": ONE_CRASH, "epochs": 1}),
    (LoadsRecordsBeforeEpochs, {"bounds": ONE_CRASH, "epochs": 1}),
    (ForgetsChannelStates, {"bounds": ONE_CRASH, "epochs": 1}),
    (CompletesBeforeMarkers, {"bounds": ONE_CRASH, "epochs": 1}),
    (RecordsAgentsOneByOne, {"bounds": ONE_CRASH, "homes": TOGETHER}),
    (GoesOnAfterLeaving, {"bounds": QUIET, "moves": 1}),
    (ForgetsAgentsThatLeft, {"bounds": ONE_CRASH, "moves": 1}),
]


@pytest.mark.parametrize(("mutant", "settings"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_broken_rule_is_found(mutant: type[LocalRecoveryModel], settings: dict[str, Any]) -> None:
    found = explored(mutant(hosts=2, **settings))
    assert found.fault is not None, f"{found.states} states"
