"""The host core with messages of sampled traces: they are kept with what they say, and are the same messages as without it."""

import msgspec
import pytest
from tests.agent_runtime.driving import Driver
from tests.agent_runtime.test_durable_turns import RECEIVE, TOLD, waiting
from tests.agent_runtime.test_inputs import Client

import snapline
from snapline.agent_runtime.durable import read_call
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.plans import creation_payload
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.message_encoding import Traceparent, encode_message, tail_of, with_tail
from snapline.agent_runtime.snapshots.snapshot_cut import decode_plainly
from snapline.messages import host_messages as msg
from snapline.messages.payloads import describe_payload
from snapline.storage.packs.checkpoint import SpawnRequest

TAIL, OTHER_TAIL = Traceparent(1, 2).tail(), Traceparent(3, 4).tail()


class Do(snapline.Message):
    what: str = ""


class Done(msgspec.Struct):
    count: int = 0


class Doer(snapline.Agent):
    state: Done

    @snapline.handler(durable=True)
    async def on_do(self, message: Do, ctx: snapline.Context) -> None:
        await ctx.sleep(1)


PLAIN = encode_message(Do("x"))


@pytest.fixture
def client() -> Client:
    made = Client(Driver())
    made.offer(("b", "first", PLAIN))
    made.open()
    made.append()
    made.driver.end("b")
    return made


def test_an_input_said_again_in_another_trace_is_the_same_input(client: Client) -> None:
    """A client that repeats a request stands in another span by then."""
    first = client.offer(("a", "k", with_tail(PLAIN, TAIL)))
    again = client.offer(("a", "k", with_tail(PLAIN, OTHER_TAIL)))
    client.append()
    assert client.answers[first] == [("accepted", 1)] and client.answers[again] == [("repeated", 1)]
    assert client.driver.turns["a"].payload == with_tail(PLAIN, TAIL), "it stays in the trace of the first one"
    client.driver.end("a")
    assert client.told(("a", "k", PLAIN)) == [("repeated", 1)]
    assert client.told(("a", "k", with_tail(PLAIN, OTHER_TAIL))) == [("repeated", 1)]
    assert client.told(("a", "k", with_tail(encode_message(Do("y")), TAIL))) == [("refused", 1)]


def test_a_followed_message_is_channel_state_with_what_it_says() -> None:
    driver = Driver()
    driver.remote_sends("z", "a", PLAIN)
    driver.remote_sends("z", "a", with_tail(PLAIN, TAIL))
    driver.feed(msg.BeginEpoch(1, 1))
    driver.end("a")
    driver.remote.mark(1, {("z", "a"): 2})
    driver.pump()
    stored = driver.last(ev.StoreEpoch)
    in_transit = stored.records["a"].in_transit
    assert [x.payload for messages in in_transit.values() for x in messages] == [with_tail(PLAIN, TAIL)]


def test_a_followed_message_is_received_like_any_other() -> None:
    driver = waiting(RECEIVE)
    driver.remote_sends("z", "a", with_tail(TOLD, TAIL))
    found = driver.turns["a"].found
    assert found is not None and found.result == with_tail(TOLD, TAIL)


def test_an_agent_is_created_of_its_kind_by_a_turn_that_is_followed() -> None:
    driver = Driver()
    driver.wake()
    kind = "m:Doer" + TAIL.decode()
    driver.end("a", spawns=[("c", kind, b"S")])
    wanted = driver.last(msg.ReserveAgents)
    assert wanted.agents == (msg.AgentKind("c", "m:Doer"),)
    assert driver.core.agents["a"].control(driver.now).spawns == [SpawnRequest("c", kind, b"S")]
    driver.feed(msg.AgentsReserved(wanted.request, incarnation=1))
    assert driver.core.agents["c"].kind == "m:Doer"
    assert driver.turns["c"].payload == creation_payload(kind, b"S") and tail_of(driver.turns["c"].payload) == TAIL


def test_whether_a_durable_turn_is_followed_changes_nothing_that_it_draws() -> None:
    """Else a recovery would find nothing of it in the host log, or what it draws would hang on the sampling."""
    seeds = []
    for payload in (PLAIN, with_tail(PLAIN, TAIL), with_tail(PLAIN, OTHER_TAIL)):
        turns = Turns(snapline.Fleet("doers", agents={"a": Doer(Done())}), print, print)
        turns.add("a", Doer(Done()))
        ended = turns.run(ev.StartTurn("a", 1, "message", "z", payload))
        assert isinstance(ended, ev.TurnEnded) and ended.pause is not None
        seeds.append(ended.pause.seed)
        turns.forget_all()
    assert seeds[0] == seeds[1] == seeds[2]


def test_people_see_the_type_of_a_message_and_not_its_trace() -> None:
    followed = with_tail(PLAIN, TAIL)
    assert describe_payload(followed) == {"type": "Do", "fields": {"what": "x"}}
    assert decode_plainly("a", followed) == ("Do", {"what": "x"})
    assert read_call(followed) == (b"", followed)
