"""Faults of a Koo-Toueg core, its round or its caller: the properties of `test_koo_toueg_properties` find each."""

import pytest
from tests.protocols.test_koo_toueg_properties import Agent, Checkpoint, OrphanError, World, run_rounds

from snapline.errors import ProtocolError
from snapline.protocols import koo_toueg as coordinator
from snapline.protocols.koo_toueg import (
    Answer,
    AnswerReceived,
    ChannelTables,
    CheckpointRequested,
    Command,
    KooTouegCore,
    KooTouegRound,
    RoundDecided,
)

MUTANT_ROUNDS = 6_000


class Unguarded(KooTouegCore):
    """Lets things happen while blocked."""

    __slots__ = ()

    def sent(self, to: str, number: int) -> None:
        self.first_sent.setdefault(to, number)

    def consumed(self, sender: str, number: int) -> None:
        self.received_from[sender] = number

    def validate(self) -> None:
        pass


class TurnsGoOn(World):
    core_type = Unguarded
    are_turns_blocked = is_outbox_blocked = False


class OutboxLeaks(World):
    core_type = Unguarded
    is_outbox_blocked = False


class LessThan(World):
    class core_type(KooTouegCore):
        def _is_needed(self, event: CheckpointRequested) -> bool:
            return event.by is None or 0 < self.first_sent.get(event.by, 0) < event.number


class NumbersAfterEmptying(World):
    class core_type(KooTouegCore):
        def _requests(self) -> dict[str, int]:
            return dict(self.received_from)


class AbortForgetsFirstSent(World):
    class core_type(KooTouegCore):
        def _merge_back(self, saved: ChannelTables) -> None:
            self.received_from = {**saved.received_from, **self.received_from}


class AbortForgetsReceivedFrom(World):
    class core_type(KooTouegCore):
        def _merge_back(self, saved: ChannelTables) -> None:
            self.first_sent = {**self.first_sent, **saved.first_sent}


class FirstSentIsLastSent(World):
    class core_type(KooTouegCore):
        def sent(self, to: str, number: int) -> None:
            self.first_sent[to] = number


class SurvivorsStartAfresh(World):
    def after_recovery(self, survivors: list[Agent]) -> None:
        for agent in survivors:
            agent.core.received_from.clear()
            agent.core.first_sent.clear()


class OneAnswerAnAgent(World):
    class round_type(KooTouegRound):
        """Takes an agent's first yes for its answer to whoever asks."""

        def _ask(self, requests: dict[str, int], *, by: str | None) -> list[coordinator.RoundCommand]:
            fresh = {agent: number for agent, number in requests.items() if agent not in self.asked}
            return super()._ask(fresh, by=by)


class NoOneAsksOn(World):
    class round_type(KooTouegRound):
        def _ask(self, requests: dict[str, int], *, by: str | None) -> list[coordinator.RoundCommand]:
            return super()._ask(requests, by=by) if by is None else []


class NoIsYes(World):
    class core_type(KooTouegCore):
        """Does not see that its no was overheard."""

        def _on_round_decided(self, event: RoundDecided) -> list[Command]:
            self._is_refused = False
            return super()._on_round_decided(event)

    class round_type(KooTouegRound):
        def handle(self, now_ns: int, event: coordinator.RoundEvent) -> list[coordinator.RoundCommand]:
            if isinstance(event, AnswerReceived) and not event.answer.is_willing and not event.answer.is_participant:
                answer = Answer(event.answer.round, event.answer.by, True, False, {})
                event = AnswerReceived(event.agent, answer)
            return super().handle(now_ns, event)

        def validate(self) -> None:
            pass


ORPHAN_MUTANTS = (
    TurnsGoOn,
    OutboxLeaks,
    LessThan,
    NumbersAfterEmptying,
    AbortForgetsFirstSent,
    AbortForgetsReceivedFrom,
    FirstSentIsLastSent,
    SurvivorsStartAfresh,
    OneAnswerAnAgent,
    NoOneAsksOn,
    NoIsYes,
)


@pytest.mark.parametrize("mutant", ORPHAN_MUTANTS)
def test_faults_make_orphans(mutant: type[World]) -> None:
    """With only the orphan oracle on, which knows nothing of tables and participants."""

    class Watched(mutant):  # type: ignore[valid-type,misc]  # a class chosen at run time
        checks_tables = False

    with pytest.raises(OrphanError):
        run_rounds(Watched, MUTANT_ROUNDS)


class EverybodyTakesPart(World):
    class core_type(KooTouegCore):
        def _is_needed(self, event: CheckpointRequested) -> bool:
            return True


class RestartKeepsOldTables(World):
    """An agent set back goes on with the tables it failed with."""

    def recovery_line(self, failed: list[str]) -> dict[str, Checkpoint]:
        self.before = {name: dict(agent.core.first_sent) for name, agent in self.agents.items()}
        return super().recovery_line(failed)

    def after_recovery(self, survivors: list[Agent]) -> None:
        for name, table in self.before.items():
            self.agents[name].core.first_sent = table


class LateRequestsCount(World):
    """A request of a round that is over begins it again."""

    class core_type(KooTouegCore):
        def _on_checkpoint_requested(self, event: CheckpointRequested) -> list[Command]:
            if event.round >= self.round:
                self._is_decided = False
            return super()._on_checkpoint_requested(event)


@pytest.mark.parametrize("mutant", [EverybodyTakesPart, RestartKeepsOldTables, LateRequestsCount])
def test_faults_that_make_no_orphans_are_seen_as_well(mutant: type[World]) -> None:
    """They ask too many, or block an agent that nobody waits for."""
    with pytest.raises((AssertionError, ProtocolError)) as caught:
        run_rounds(mutant, MUTANT_ROUNDS)
    assert not isinstance(caught.value, OrphanError)
