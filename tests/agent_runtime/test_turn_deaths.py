"""A message in whose turn too many processes have died has no turn any more: it is a dead letter, whatever the turn was like. One that ends well is forgiven."""

import msgspec
import pytest
from tests.agent_runtime.driving import Driver, checkpoint
from tests.agent_runtime.test_durable_turns import GO, OTHER, SEED, STEP
from tests.agent_runtime.test_letters import LETTERS, Operator, with_dead_letters, word

import snapline
from snapline.agent_runtime.durable import Pause
from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.failures import END_BYTES, HEAD_BYTES, MessageSample, digest_of_turn
from snapline.agent_runtime.host.plans import creation_payload
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import Traceparent, encode_message, with_tail
from snapline.messages import host_messages as msg
from snapline.messages.agent_commands import RETRY
from snapline.messages.host_messages import TurnDeath
from snapline.storage.packs.checkpoint import SavedTurn

SENTENCE = "3 processes died while agent a handled Go from z"


def death(payload: bytes = GO, times: int = 3, *, what: str = "message", sender: str = "z") -> TurnDeath:
    digest = digest_of_turn(what, sender, MessageSample(payload))
    return TurnDeath("a", what, sender, "Go", digest, limit=2, times=times)


def refused(driver: Driver, agent: str = "a") -> None:
    """What `Turns` makes of a turn that is refused."""
    turn = driver.turns.pop(agent)
    assert turn.refusal == SENTENCE
    driver.feed(ev.TurnFailed(agent, turn.incarnation, turn.refusal, 7, "keep", 0))


def tell(driver: Driver, *deaths: TurnDeath) -> None:
    driver.core.turn_ends.deaths.plan_received(deaths)


def letters(driver: Driver) -> list[tuple[str, bytes, int]]:
    return [(letter.error, letter.payload, letter.attempts) for letter in driver.core.agents["a"].dead_letters]


def test_a_message_that_has_killed_too_many_processes_is_a_dead_letter() -> None:
    driver = Driver()
    tell(driver, death())
    driver.remote_sends("z", "a", GO, OTHER)
    refused(driver)
    assert letters(driver) == [(SENTENCE, GO, 3)]
    assert driver.turns["a"].payload == OTHER and not driver.turns["a"].refusal, "the next one has its turn"
    assert driver.core.agents["a"].received() == {"z": 1}


def test_it_has_turns_until_then() -> None:
    driver = Driver()
    tell(driver, death(times=2))
    driver.remote_sends("z", "a", GO)
    assert not driver.turns["a"].refusal


def test_other_senders_and_agents_are_not_blamed() -> None:
    driver = Driver()
    tell(driver, death(sender="y"), msgspec.structs.replace(death(), agent="b"))
    driver.remote_sends("z", "a", GO)
    assert not driver.turns["a"].refusal


def test_a_turn_that_ends_well_is_forgiven_and_said_again_on_a_new_stream() -> None:
    driver = Driver()
    known = death(times=2)
    tell(driver, known)
    driver.remote_sends("z", "a", GO)
    survived = msg.TurnSurvived("a", known.digest)
    assert survived in driver.end("a")
    assert survived in driver.feed(msg.Welcome(1, "c"))
    driver.remote_sends("z", "a", GO)
    assert survived not in driver.end("a"), "it is known to be good by now"


def test_a_plan_replaces_what_was_known() -> None:
    driver = Driver()
    tell(driver, death())
    placements = tuple([ev.Placement(agent, "k", "h1", 2) for agent in ("a", "b")])
    driver.feed(ev.PlanReceived(2, 0, "", 0, ("h1",), placements, deaths=(death(OTHER),)))
    assert [known.digest for known in driver.core.turn_ends.deaths.known.values()] == [death(OTHER).digest]


def test_a_durable_turn_is_buried_in_its_middle() -> None:
    saved = checkpoint("a", is_started=True, saved_turn=SavedTurn("message", "z", GO, SEED, "", [], STEP))
    driver = Driver(checkpoints={"a": saved, "b": checkpoint("b", is_started=True)})
    driver.turns.clear()
    driver.receive_plan(2)
    tell(driver, death())
    driver.load(2)
    assert driver.turns["a"].what == "segment"
    refused(driver)
    assert letters(driver) == [(SENTENCE, GO, 3)] and driver.core.agents["a"].turn is None


def test_a_durable_turn_that_only_pauses_has_not_ended_well() -> None:
    driver = Driver()
    tell(driver, death(times=2))
    driver.remote_sends("z", "a", GO)
    said = driver.end("a", pause=Pause(SEED, STEP, None, []))
    assert not [x for x in said if isinstance(x, msg.TurnSurvived)]


def test_a_retry_is_tried_whatever_the_message_has_done_and_forgives_it() -> None:
    driver = Driver(checkpoints={"a": with_dead_letters(), "b": checkpoint("b", is_started=True)})
    operator = Operator(driver)
    known = death(LETTERS[0].payload)
    tell(driver, known)
    operator.settle("again", word(RETRY, 4))
    assert driver.turns["a"].what == "letter" and not driver.turns["a"].refusal
    assert msg.TurnSurvived("a", known.digest) in driver.end("a")


# -- which message it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 10, HEAD_BYTES - 2, HEAD_BYTES + 1, END_BYTES + 3 * HEAD_BYTES])
def test_a_message_is_known_again_with_another_trace_or_none(size: int) -> None:
    payload = b"\x02Go" + bytes(size) + b"x"
    other = with_tail(payload, Traceparent(1, 2).tail())
    assert other != payload
    assert digest_of_turn("message", "z", MessageSample(payload)) == digest_of_turn(
        "stashed", "z", MessageSample(other)
    )


@pytest.mark.parametrize("at", [3, HEAD_BYTES + 1, -1])
def test_what_differs_is_another_message(at: int) -> None:
    payload = bytearray(b"\x02Go" + bytes(HEAD_BYTES + 100))
    before = digest_of_turn("message", "z", MessageSample(bytes(payload)))
    payload[at] = 1
    assert digest_of_turn("message", "z", MessageSample(bytes(payload))) != before


# -- what runs turns ---------------------------------------------------------------------------------------------------


class Kid(snapline.Agent):
    state: dict[str, int]

    async def on_start(self, ctx: snapline.Context) -> None:
        raise AssertionError("it is not called")


class Quit(snapline.Message):
    """Leave the process."""


class Leaving(snapline.Agent):
    state: dict[str, int]

    @snapline.handler
    async def on_quit(self, message: Quit, ctx: snapline.Context) -> None:
        raise SystemExit(3)


def turns_of(**agents: snapline.Agent) -> Turns:
    turns = Turns(Fleet("f", agents=dict(agents)), lambda event: None, lambda sentence: None)
    for agent, made in agents.items():
        turns.add(agent, made)
    return turns


@pytest.mark.parametrize("is_made", [True, False])
def test_an_agent_whose_start_kills_lives_on_in_its_first_state(is_made: bool) -> None:
    """Unless it is not even to be made: then that has killed, too."""
    turns = turns_of(a=Leaving({}))
    payload = creation_payload(f"{__name__}:Kid", b"\x80")
    turn = ev.StartTurn("kid", 1, "create", "a", payload, refusal="3 processes died", is_made=is_made)
    failed = turns.run(turn)
    assert isinstance(failed, ev.TurnFailed) and failed.error == "3 processes died" and failed.retries == 0
    assert turns.has("kid") is is_made is not failed.is_final


def test_a_handler_that_asks_python_to_exit_fails_its_turn_and_no_more() -> None:
    failed = turns_of(a=Leaving({})).run(ev.StartTurn("a", 1, "message", "z", encode_message(Quit())))
    assert isinstance(failed, ev.TurnFailed) and failed.error.strip().endswith("SystemExit: 3")
