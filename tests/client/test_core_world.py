"""A client's core against hosts that die and a network that loses: what it says is so, by books that are not its own."""

import collections
from collections.abc import Callable

import pytest
from tests.client.world import judge, run

from snapline.client import client_events as ev
from snapline.client.core import ClientCore
from snapline.client.queues import AgentQueue, AgentQueues, Entry

SEEDS = (*range(12), 30)
"""In the last one an agent has stopped, which refuses what is sent to it."""


def test_every_send_ends_as_the_books_say_and_in_order() -> None:
    seen: collections.Counter[str] = collections.Counter()
    for trouble in (0.0, 0.02, 0.05, 0.15, 0.3):
        endings: collections.Counter[str] = collections.Counter()
        for seed in SEEDS:
            world = run(seed, trouble=trouble)
            try:
                judge(world)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, trouble {trouble}: {error}") from error
            ends = [end for _, end in world.ends.values()]
            endings.update("repeated" if end.is_repeated else end.ending for end in ends)
        print(trouble, dict(endings))
        assert trouble or set(endings) == {"taken"}
        seen.update(endings)
    assert set(seen) == {"taken", "repeated", "unknown", "dropped", "missing", "refused", "ended", "not taken"}


# ---- each rule is needed ------------------------------------------------------------------------------------------------


def doubt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def end(core: ClientCore, entry: Entry, ending: str, reason: str) -> None:
        core._over(entry)
        core._out.append(ev.FinishSend(entry.send, ending, reason))

    patch.setattr(ClientCore, "_end", end)


def nothing_is_ever_in_doubt(patch: pytest.MonkeyPatch) -> None:
    fail = ClientCore._fail
    patch.setattr(ClientCore, "_fail", lambda core, request, reason, **_: fail(core, request, reason, is_unsent=True))


def what_is_under_way_was_not_taken(patch: pytest.MonkeyPatch) -> None:
    def give_up(core: ClientCore, entry: Entry, reason: str) -> None:
        core._queues.take_out(entry)
        core._end(entry, ev.NOT_TAKEN, reason)

    patch.setattr(ClientCore, "_give_up", give_up)


def what_was_not_taken_goes_behind(patch: pytest.MonkeyPatch) -> None:
    def put_back(queues: AgentQueues, queue: AgentQueue, entries: list[Entry]) -> None:
        queue.waiting.extend([entry for entry in entries if not entry.is_over])

    patch.setattr(AgentQueues, "put_back", put_back)


def an_agent_is_in_two_requests(patch: pytest.MonkeyPatch) -> None:
    add = AgentQueues.add

    def adding(queues: AgentQueues, entry: Entry) -> None:
        add(queues, entry)
        queue = queues.of(entry.agent)
        if queue is not None and queue.stage == "out":
            queues.go(queue)

    patch.setattr(AgentQueues, "add", adding)
    patch.setattr(ClientCore, "validate", lambda core: None)


def time_does_not_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClientCore, "_expire", lambda core: None)


def a_failure_is_a_receipt(patch: pytest.MonkeyPatch) -> None:
    def end(core: ClientCore, entry: Entry, ending: str, reason: str) -> None:
        core._over(entry)
        core._out.append(ev.FinishSend(entry.send, ev.TAKEN if entry.is_in_doubt else ending, reason, 1))

    patch.setattr(ClientCore, "_end", end)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    doubt_is_forgotten,
    nothing_is_ever_in_doubt,
    what_is_under_way_was_not_taken,
    what_was_not_taken_goes_behind,
    an_agent_is_in_two_requests,
    time_does_not_end,
    a_failure_is_a_receipt,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_world_finds_a_client_that_breaks_a_rule(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        for seed in SEEDS:
            judge(run(seed, trouble=0.15))
