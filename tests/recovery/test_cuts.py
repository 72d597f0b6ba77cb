"""Orphans and in-transit numbers of cuts, against the messages themselves."""

from random import Random

import pytest

from snapline.recovery.dependency_records import DependencyRecord, Orphans, in_transit_numbers, orphans


def test_an_agent_outside_the_cut_has_sent_and_received_nothing() -> None:
    assert orphans({"b": DependencyRecord({}, {"a": 1})}) == [Orphans("a", "b", 0, 1)]
    assert in_transit_numbers({"a": DependencyRecord({"child": 1}, {})}) == {("a", "child"): range(1, 2)}


def test_numbers_of_agents_that_are_gone_are_settled() -> None:
    cut = {"b": DependencyRecord({"a": 5}, {"a": 3})}
    assert not orphans(cut, gone={"a"})
    assert in_transit_numbers(cut, gone={"a"}) == {}


@pytest.mark.parametrize("seed", range(200))
def test_agrees_with_the_messages_themselves(seed: int) -> None:
    """Random FIFO executions and random cuts: the message ids inside and outside decide."""
    random = Random(seed)
    agents = ["a", "b", "c"]
    histories: dict[str, list[tuple[str, str, int]]] = {agent: [] for agent in agents}  # (kind, other end, number)
    queues: dict[tuple[str, str], list[int]] = {(i, j): [] for i in agents for j in agents}
    counts = dict.fromkeys(queues, 0)
    for _ in range(30):
        channel = random.choice(list(queues))
        if queues[channel] and random.random() < 0.5:
            histories[channel[1]].append(("received", channel[0], queues[channel].pop(0)))
        else:
            counts[channel] += 1
            queues[channel].append(counts[channel])
            histories[channel[0]].append(("sent", channel[1], counts[channel]))

    inside = {agent: history[: random.randint(0, len(history))] for agent, history in histories.items()}
    cut = {agent: record_of(history) for agent, history in inside.items()}
    sent = {(i, j, number) for i in agents for kind, j, number in inside[i] if kind == "sent"}
    received = {(i, j, number) for j in agents for kind, i, number in inside[j] if kind == "received"}
    found_orphans = {
        (channel.sender, channel.receiver, number)
        for channel in orphans(cut)
        for number in range(channel.sent + 1, channel.received + 1)
    }
    found_in_transit = {(i, j, number) for (i, j), numbers in in_transit_numbers(cut).items() for number in numbers}
    assert found_orphans == received - sent
    assert found_in_transit == sent - received
    assert (not orphans(cut)) == (received <= sent)


def record_of(history: list[tuple[str, str, int]]) -> DependencyRecord:
    sent = {other: number for kind, other, number in history if kind == "sent"}
    received = {other: number for kind, other, number in history if kind == "received"}
    return DependencyRecord(sent, received)
