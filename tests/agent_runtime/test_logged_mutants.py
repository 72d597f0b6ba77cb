"""Faults put into host cores of logged protocols: the seeded world finds each of them."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.agent_runtime.coins import play_logged
from tests.agent_runtime.test_logged_world import useless
from tests.kit.logged_fleet import LoggedFleet

from snapline.agent_runtime.host.entries import Entry
from snapline.agent_runtime.host.host_state import LocalAgent
from snapline.agent_runtime.host.logged_agent import LoggedAgent
from snapline.agent_runtime.host.modes.logged import HostRounds, LoggedMode
from snapline.agent_runtime.host.modes.logged_checkpoints import HoldReasons
from snapline.errors import ProtocolError, UsageError
from snapline.examples import domino
from snapline.messages import host_messages as msg
from snapline.protocols import koo_toueg as kt
from snapline.protocols.names import KOO_TOUEG, UNCOORDINATED

Patch = pytest.MonkeyPatch
SEEDS = range(40)


def a_message_is_not_logged(patch: Patch) -> None:
    keep = LoggedAgent.keep

    def forgetful(self: LoggedAgent, receiver: str, number: int, payload: bytes, piggyback: bytes) -> None:
        keep(self, receiver, number, payload, piggyback)
        if number % 7 == 0:
            self.log[receiver].pop()

    patch.setattr(LoggedAgent, "keep", forgetful)
    patch.setattr(LoggedMode, "validate", lambda self: None)


def the_log_is_emptied_a_turn_late(patch: Patch) -> None:
    settle = LoggedAgent.settle

    def slow(self: LoggedAgent, sent: dict[str, int], received: dict[str, int]) -> None:
        log = self.log
        settle(self, sent, received)
        self.log = log

    patch.setattr(LoggedAgent, "settle", slow)
    patch.setattr(LoggedMode, "validate", lambda self: None)


def blocked_agents_go_on(patch: Patch) -> None:
    ask = HostRounds._ask

    def lax(self: HostRounds, agent: LocalAgent, asked: kt.CheckpointRequested) -> Any:
        answers = ask(self, agent, asked)
        agent.is_held = False
        return answers

    patch.setattr(HostRounds, "_ask", lax)
    patch.setattr(LoggedMode, "validate", lambda self: None)


def consumption_is_not_noted(patch: Patch) -> None:
    def deaf(self: LoggedMode, inlet: Any) -> None:
        owner = inlet.owner
        if owner is not None:
            owner.logged.admitted = False
            owner.logged.has_moved = True

    patch.setattr(LoggedMode, "consumed", deaf)


def aborted_rounds_count(patch: Patch) -> None:
    ended = HostRounds.ended

    def hopeful(self: HostRounds, event: msg.EndEpoch) -> None:
        ended(self, msg.EndEpoch(event.epoch, True))

    patch.setattr(HostRounds, "ended", hopeful)


def old_news_ends_a_blockade(patch: Patch) -> None:
    def lax(self: HoldReasons, agent: LocalAgent) -> None:
        agent.is_held = False
        self._mailboxes.next_turn(agent)

    patch.setattr(HoldReasons, "release", lax)
    patch.setattr(LoggedMode, "validate", lambda self: None)


SAFETY: list[tuple[Callable[[Patch], None], str]] = [
    (a_message_is_not_logged, UNCOORDINATED),
    (the_log_is_emptied_a_turn_late, UNCOORDINATED),
    (blocked_agents_go_on, KOO_TOUEG),
    (consumption_is_not_noted, KOO_TOUEG),
    (aborted_rounds_count, KOO_TOUEG),
    (old_news_ends_a_blockade, KOO_TOUEG),
]


@pytest.mark.parametrize(("mutant", "protocol"), SAFETY, ids=lambda value: getattr(value, "__name__", value))
def test_the_world_finds_it(mutant: Callable[[Patch], None], protocol: str, monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in SEEDS:
        try:
            play_logged(seed, protocol)
        except (AssertionError, ProtocolError, UsageError):
            return
    pytest.fail(f"{mutant.__name__} was not found in {len(SEEDS)} runs")


def test_without_forced_checkpoints_some_are_useless(monkeypatch: Patch) -> None:
    """So the count of useless checkpoints in the other tests can fail: see `test_dominoes_fall_where_nothing_is_forced`."""
    consuming = LoggedMode.consuming

    def lenient(self: LoggedMode, agent: LocalAgent, entry: Entry) -> None:
        monkeypatch.setattr(type(agent.logged.rule), "forces", lambda self, sender, piggyback: False)
        consuming(self, agent, entry)

    monkeypatch.setattr(LoggedMode, "consuming", lenient)
    world = LoggedFleet(domino.fleet(protocol="hmnr", passes="30"), 2, 1)
    assert world.settle()
    assert useless(world) > 10
