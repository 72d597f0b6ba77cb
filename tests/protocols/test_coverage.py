"""When an epoch is whole (rule 6), and that a thousand reports are compared quickly."""

import time

from hypothesis import given
from hypothesis import strategies as st

from snapline.protocols.epoch_stamped import AgentReport, check_coverage

Numbers = dict[str, int]


def reports(
    *, sent: dict[str, Numbers], received: dict[str, Numbers], recorded: dict[str, Numbers] | None = None
) -> dict[str, AgentReport]:
    agents = [*sent, *(agent for agent in received if agent not in sent)]
    counts = recorded or {}
    return {
        agent: AgentReport(agent, False, sent.get(agent, {}), received.get(agent, {}), counts.get(agent, {}))
        for agent in agents
    }


def test_an_epoch_without_channels_is_whole() -> None:
    assert check_coverage({}, ()).is_whole
    assert check_coverage(reports(sent={"a": {}}, received={}), ()).is_whole


def test_what_has_not_arrived_is_missing() -> None:
    coverage = check_coverage(reports(sent={"a": {"b": 7}}, received={"b": {"a": 4}}, recorded={"b": {"a": 2}}), ())
    assert coverage.missing == [("a", "b", "7 sent, 4 received, 2 recorded")]
    assert coverage.orphans == []


def test_an_agent_that_a_sender_names_is_waited_for() -> None:
    """It may be unborn, and known to nobody but the sender."""
    assert check_coverage(reports(sent={"a": {"b": 1}}, received={}), ()).missing == [("a", "b", "b has not reported")]


def test_an_agent_that_a_receiver_names_is_waited_for() -> None:
    assert check_coverage(reports(sent={}, received={"b": {"a": 1}}), ()).missing == [("a", "b", "a has not reported")]


def test_channels_without_messages_wait_for_nobody() -> None:
    assert check_coverage(reports(sent={"a": {"b": 0}}, received={"a": {"c": 0}}), ()).is_whole


def test_dead_letters_are_not_waited_for() -> None:
    assert check_coverage(reports(sent={"a": {"b": 5}}, received={}), {"b"}).is_whole


def test_the_numbers_of_an_agent_that_is_gone_count_until_covered() -> None:
    arriving = reports(sent={"a": {"b": 5}}, received={"b": {"a": 4}})
    assert check_coverage(arriving, {"a"}).missing == [("a", "b", "5 sent, 4 received, 0 recorded")]
    assert check_coverage(reports(sent={}, received={"b": {"a": 5}}), {"a"}).is_whole


@given(st.data())
def test_agrees_with_the_definition(data: st.DataObject) -> None:
    agents = ["a", "b", "c"]
    number = st.integers(0, 2)
    pairs = [(sender, receiver) for sender in agents for receiver in agents]
    sent, received, recorded = ({pair: data.draw(number) for pair in pairs} for _ in range(3))
    tables = {
        agent: AgentReport(
            agent,
            False,
            {j: sent[agent, j] for j in agents if sent[agent, j]},
            {i: received[i, agent] for i in agents if received[i, agent]},
            {i: recorded[i, agent] for i in agents if recorded[i, agent]},
        )
        for agent in agents
    }
    coverage = check_coverage(tables, ())
    arrived = {pair: received[pair] + recorded[pair] for pair in pairs}
    assert {(i, j) for i, j, _ in coverage.missing} == {pair for pair in pairs if arrived[pair] < sent[pair]}
    assert {(i, j) for i, j, _, _ in coverage.orphans} == {pair for pair in pairs if arrived[pair] > sent[pair]}


def test_a_thousand_agents_with_ten_thousand_channels_take_milliseconds() -> None:
    agents = [f"a{number}" for number in range(1_000)]
    sent: dict[str, Numbers] = {agent: {} for agent in agents}
    received: dict[str, Numbers] = {agent: {} for agent in agents}
    recorded: dict[str, Numbers] = {agent: {} for agent in agents}
    for position, agent in enumerate(agents):
        for distance in range(1, 11):
            receiver = agents[(position + distance * 37) % 1_000]
            sent[agent][receiver] = 20
            received[receiver][agent] = 15
            recorded[receiver][agent] = 5
    tables = reports(sent=sent, received=received, recorded=recorded)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        assert check_coverage(tables, set()).is_whole
        times.append(time.perf_counter() - started)
    assert min(times) < 0.1  # usually 5 ms; wide, since the machine may be busy
