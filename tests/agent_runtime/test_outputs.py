"""Outputs in one host core: numbered at the end of their turn, kept until an epoch has released them, dropped by the numbers of its cut."""

import random

import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_inputs import Client

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host import host_outputs
from snapline.agent_runtime.host.coordinator_messages import heartbeat_of
from snapline.messages import host_messages as msg
from snapline.storage.packs.checkpoint import AgentCheckpoint, SavedOutput, SavedOutputs

LOGGED = ["hmnr", "uncoordinated"]


def emission(text: str, size: int = 1) -> ev.Emission:
    return ("topic", text.encode() * size, 5)


def emit(driver: Driver, agent: str, *texts: str, size: int = 1, **outcome: object) -> None:
    """A turn of its own says this to the outside."""
    if agent not in driver.turns:
        driver.wake(agent)
    driver.end(agent, outputs=[emission(text, size) for text in texts], **outcome)


def released(epoch: int, **numbers: int) -> msg.EndEpoch:
    return msg.EndEpoch(epoch, True, emitters=tuple(numbers), outputs=tuple(numbers.values()))


def pending(driver: Driver, agent: str) -> tuple[int, list[int]]:
    """As a checkpoint taken now would hold it."""
    saved = driver.core.agents[agent].control(driver.now).outputs
    return saved.number, [output.number for output in saved.pending]


def restored(number: int, *waiting: int, is_leaving: bool = False) -> AgentCheckpoint:
    kept = [SavedOutput(each, "topic", b"x", 5) for each in waiting]
    return AgentCheckpoint(
        agent="a", kind="k:K", epoch=1, is_started=True, is_leaving=is_leaving, saved_outputs=SavedOutputs(number, kept)
    )


# ---- numbers --------------------------------------------------------------------------------------------------------


def test_outputs_are_numbered_as_turns_end_and_kept_in_checkpoints() -> None:
    driver = Driver()
    emit(driver, "a", "one", "two")
    emit(driver, "a", "three")
    driver.feed(msg.BeginEpoch(1, 1))
    (capture,) = driver.captures("a")
    assert capture.control.outputs == SavedOutputs(
        3, [SavedOutput(n, "topic", text, 5) for n, text in enumerate([b"one", b"two", b"three"], 1)]
    )
    assert driver.captures("b")[0].control.outputs == SavedOutputs()


def test_turn_that_fails_says_nothing() -> None:
    driver = Driver()
    driver.wake("a")
    driver.fail("a", on_error="keep")
    assert pending(driver, "a") == (0, [])


def test_epoch_that_is_complete_keeps_them_until_it_is_released() -> None:
    driver = Driver()
    emit(driver, "a", "one", "two")
    driver.feed(msg.EndEpoch(1, True))
    assert pending(driver, "a") == (2, [1, 2])
    driver.feed(released(1, a=1, elsewhere=7))
    assert pending(driver, "a") == (2, [2]), "what was emitted since its cut is in a later one"
    driver.feed(released(1, a=1))
    assert pending(driver, "a") == (2, [2])
    emit(driver, "a", "three")
    assert pending(driver, "a") == (3, [2, 3])


def test_epoch_that_is_aborted_releases_nothing() -> None:
    driver = Driver()
    emit(driver, "a", "one")
    driver.feed(msg.EndEpoch(1, False, "aborted"))
    assert pending(driver, "a") == (1, [1])


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_plan_loads_what_is_pending_and_numbers_go_on() -> None:
    driver = Driver(checkpoints={"a": restored(5, 4, 5)}, begun=1)
    assert pending(driver, "a") == (5, [4, 5])
    emit(driver, "a", "six")
    assert pending(driver, "a") == (6, [4, 5, 6])
    driver.feed(released(1, a=5))
    assert pending(driver, "a") == (6, [6]), "the line's own release is told under the plan"


def test_release_that_is_told_while_agents_are_loaded_counts() -> None:
    driver = Driver(checkpoints={"a": restored(5, 4, 5)}, begun=1)
    driver.receive_plan(2, begun=3)
    driver.feed(released(1, a=4))
    driver.load(2)
    assert pending(driver, "a") == (5, [5])


def test_release_of_an_earlier_plan_is_forgotten_with_it() -> None:
    driver = Driver(checkpoints={"a": restored(5, 4, 5)}, begun=1)
    driver.receive_plan(2, begun=3)
    driver.feed(released(1, a=5))
    driver.receive_plan(3, begun=3)
    driver.load(3)
    assert pending(driver, "a") == (5, [4, 5])


# ---- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["", *LOGGED])
def test_agent_that_stops_stays_until_its_outputs_are_released(protocol: str) -> None:
    driver = Driver(protocol=protocol)
    emit(driver, "a", "one", stops=True)
    assert driver.all_of(msg.RetireAgent) == [] and driver.all_of(msg.WantEpoch) == [msg.WantEpoch(1)]
    driver.feed(msg.EndEpoch(1, True))
    assert driver.all_of(msg.RetireAgent) == [] and len(driver.all_of(msg.WantEpoch)) == 1, "its release is on its way"
    driver.feed(released(1, a=1))
    assert [x.agent for x in driver.all_of(msg.RetireAgent)] == ["a"] and len(driver.all_of(msg.WantEpoch)) == 1


@pytest.mark.parametrize("protocol", LOGGED)
def test_agent_that_stops_takes_a_checkpoint_for_its_outputs(protocol: str) -> None:
    driver = Driver(protocol=protocol)
    emit(driver, "a", "one", stops=True)
    assert driver.last(ev.TakeCheckpoint).control.outputs.number == 1


@pytest.mark.parametrize("ended", [msg.EndEpoch(1, False, "aborted"), msg.EndEpoch(1, True, "condemned")])
def test_agent_that_stops_asks_again_when_an_epoch_comes_to_nothing(ended: msg.EndEpoch) -> None:
    driver = Driver()
    emit(driver, "a", "one", stops=True)
    driver.feed(ended)
    assert driver.all_of(msg.WantEpoch) == [msg.WantEpoch(1)] * 2
    driver.feed(msg.Welcome(1, "c"))
    assert len(driver.all_of(msg.WantEpoch)) == 3, "a new leader may not have heard"


def test_agent_that_had_stopped_before_a_plan_leaves_when_the_line_is_released() -> None:
    driver = Driver(checkpoints={"a": restored(2, 1, 2, is_leaving=True)}, begun=1)
    assert driver.all_of(msg.RetireAgent) == [] and driver.all_of(msg.WantEpoch) == [msg.WantEpoch(1)]
    driver.feed(released(1, a=2))
    assert [x.agent for x in driver.all_of(msg.RetireAgent)] == ["a"]


# ---- watched --------------------------------------------------------------------------------------------------------


def test_epoch_is_wanted_for_outputs_while_somebody_watches() -> None:
    driver = Driver()
    emit(driver, "a", "one")
    assert driver.all_of(msg.WantEpoch) == []
    driver.feed(msg.OutputsWatched(True))
    emit(driver, "b", "one")
    assert driver.all_of(msg.WantEpoch) == [msg.WantEpoch(1)]
    driver.feed(msg.EndEpoch(1, True))
    driver.feed(released(1, a=1))
    assert len(driver.all_of(msg.WantEpoch)) == 2, "b's was emitted behind the cut"
    driver.feed(msg.EndEpoch(2, True))
    driver.feed(released(2, a=1, b=1))
    driver.feed(msg.OutputsWatched(False))
    emit(driver, "a", "two")
    assert len(driver.all_of(msg.WantEpoch)) == 2


# ---- limits ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_outputs, "AGENT_BYTES_MAX", 10)
    monkeypatch.setattr(host_outputs, "HOST_BYTES_MAX", 15)


def offered(driver: Driver, agent: str) -> str:
    """What an input is told."""
    driver.feed(ev.InputsOffered(1, "shop", 0, (ev.OfferedInput(agent, "k", b"\x01p"),)))
    said = [x for x in driver.said if isinstance(x, ev.AnswerInputs)]
    return said[-1].answers[0].reason if said else ""


@pytest.mark.usefixtures("small")
def test_agent_with_too_many_pending_outputs_is_held_to_messages_of_others() -> None:
    driver = Driver()
    emit(driver, "a", "x", size=11, timers=[("tick", 0, b"\x01t")])
    driver.feed(ev.TimerFired())
    assert "a" not in driver.turns, "its own turns wait"
    assert "wait for a snapshot" in offered(driver, "a")
    assert driver.all_of(msg.WantEpoch) == [msg.WantEpoch(1)]
    emit(driver, "a", "y")
    driver.feed(released(1, a=1))
    assert driver.turns["a"].what == "timer", "it goes on when there is room"


@pytest.mark.usefixtures("small")
def test_host_with_too_many_pending_outputs_holds_all_who_have_some() -> None:
    driver = Driver(here=("a", "b", "c"))
    emit(driver, "a", "x", size=8, timers=[("tick", 2_000_000_000, b"\x01t")])
    emit(driver, "b", "x", size=8)
    driver.feed(ev.TimerFired(), after_ns=2_000_000_000)
    assert "a" not in driver.turns
    assert [driver.core.agents[agent].is_full for agent in "abc"] == [True, True, False]
    driver.feed(released(1, b=1))
    assert driver.turns["a"].what == "timer"


@pytest.mark.usefixtures("small")
def test_heartbeats_say_what_waits_and_who_is_full() -> None:
    driver = Driver()
    client = Client(driver)
    client.open()
    client.offer(("a", "k1", b"\x01p"), ("a", "k2", b"\x01p"), ("b", "k1", b"\x01p"))
    client.append()
    emit(driver, "a", "x", "y", size=4)
    beat = heartbeat_of(driver.core, 1, now_ns=0)
    assert (beat.inputs_waiting, beat.outputs_waiting, beat.output_bytes_waiting, beat.agents_full) == (2, 2, 8, 0)
    emit(driver, "a", "z", size=4)
    beat = heartbeat_of(driver.core, 2, now_ns=0)
    assert (beat.inputs_waiting, beat.outputs_waiting, beat.agents_full) == (1, 3, 1)
    driver.feed(released(1, a=3))
    beat = heartbeat_of(driver.core, 3, now_ns=0)
    assert (beat.outputs_waiting, beat.output_bytes_waiting, beat.agents_full) == (0, 0, 0)


@pytest.mark.usefixtures("small")
def test_plan_judges_what_it_loads() -> None:
    driver = Driver(checkpoints={"a": restored(20, *range(1, 21))}, begun=1)
    assert driver.core.agents["a"].is_full
    driver.receive_plan(2, begun=1)
    driver.checkpoints = {"a": restored(20)}
    driver.load(2)
    assert not driver.core.agents["a"].is_full


# ---- any mixture ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("small")
def test_any_mixture_keeps_each_output_until_it_is_told_as_released(seed: int) -> None:
    """The model: per agent, what was emitted, and the highest number told."""
    chance, driver, model = random.Random(seed), Driver(), {"a": [0, 0], "b": [0, 0]}
    for epoch in range(1, 30):
        agent = chance.choice(["a", "b"])
        count = chance.randrange(4)
        emit(driver, agent, *["x"] * count, size=chance.randrange(1, 4))
        model[agent][0] += count
        if chance.random() < 0.5:
            told = {each: chance.randint(known[1], known[0]) for each, known in model.items()}
            driver.feed(released(epoch, **told))
            for each, number in told.items():
                model[each][1] = number
        for each, (number, low) in model.items():
            assert pending(driver, each) == (number, list(range(low + 1, number + 1)))
