"""Inputs in one host core: who is admitted, what is acknowledged when, and what a plan makes of it."""

import dataclasses

import pytest
from tests.agent_runtime.driving import Driver

from snapline.agent_runtime.host import agent_io, host_inputs, host_log
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.agent_io import AgentInputs
from snapline.errors import ProtocolError
from snapline.messages import host_messages as msg
from snapline.storage.log.log_record import LoggedInput, LogName
from snapline.storage.packs.checkpoint import AgentCheckpoint, SavedInputs

WALL_NS = 1_700_000_000_000_000_000


@dataclasses.dataclass
class Client:
    """Offers inputs to a driven core; `answers`: request → what it was told."""

    driver: Driver
    count: int = 0

    def offer(self, *offered: tuple[str, str, bytes]) -> int:
        self.count += 1
        made = tuple([ev.OfferedInput(agent, key, payload) for agent, key, payload in offered])
        self.driver.feed(ev.InputsOffered(self.count, "shop", WALL_NS, made))
        return self.count

    def told(self, *offered: tuple[str, str, bytes]) -> list[tuple[str, int]]:
        """What is answered at once."""
        request = self.offer(*offered)
        return self.answers[request]

    def open(self) -> None:
        self.driver.feed(msg.LogOpened(self.driver.plan))

    @property
    def answers(self) -> dict[int, list[tuple[str, int]]]:
        said = [x for x in self.driver.said if isinstance(x, ev.AnswerInputs)]
        return {x.request: [(answer.status, answer.number) for answer in x.answers] for x in said}

    def reason(self, request: int) -> str:
        (said,) = [x for x in self.driver.said if isinstance(x, ev.AnswerInputs) and x.request == request]
        return said.answers[0].reason

    @property
    def batches(self) -> list[tuple[int, list[str]]]:
        said = [x for x in self.driver.said if isinstance(x, ev.AppendBatch)]
        return [(x.number, [each.key for each in x.inputs]) for x in said]

    def append(self) -> None:
        batch = self.driver.last(ev.AppendBatch)
        self.driver.feed(ev.BatchAppended(batch.log, batch.number))


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def client(driver: Driver) -> Client:
    """One whose host has a log already: a first input is in it."""
    made = Client(driver)
    made.offer(("b", "first", b"\x010"))
    made.open()
    made.append()
    driver.end("b")
    return made


def logged(agent: str, number: int, key: str = "", payload: bytes = b"\x01p") -> LoggedInput:
    return LoggedInput(agent, number, "shop", key or f"k{number}", payload, WALL_NS)


# ---- in -------------------------------------------------------------------------------------------------------------


def test_nothing_is_written_before_the_coordinator_knows_of_the_log(driver: Driver) -> None:
    client = Client(driver)
    client.offer(("a", "k1", b"\x011"))
    client.offer(("a", "k2", b"\x012"))
    assert driver.all_of(msg.OpenLog) == [msg.OpenLog(1)] and client.batches == []
    driver.feed(msg.Welcome(1, "c"))
    assert driver.all_of(msg.OpenLog) == [msg.OpenLog(1)] * 2, "it may not have heard"
    driver.feed(ev.TimerFired(), after_ns=host_log.REQUEST_RETRY_NS)
    assert driver.all_of(msg.OpenLog) == [msg.OpenLog(1)] * 3, "or not have got round to it"
    client.open()
    assert client.batches == [(1, ["k1", "k2"])]
    client.open()
    assert len(client.batches) == 1


def test_plain_log_tells_nothing_but_that_it_is_wanted(driver: Driver, client: Client) -> None:
    client.offer(("a", "k1", b"\x011"))
    client.append()
    driver.feed(ev.TimerFired(), after_ns=10 * host_log.REPORT_INTERVAL_NS)
    assert driver.all_of(msg.OpenLog) == [msg.OpenLog(1)]
    assert driver.last(ev.AppendBatch).certificate == b""


class TestLogOfAStoreWithKeys:
    """Its batches bear the coordinator's certificate, and the coordinator hears which of them are durable."""

    @pytest.fixture
    def driver(self) -> Driver:
        driver = Driver()
        driver.receive_plan(2)
        loaded = tuple(ev.LoadedAgent(agent, 2, None) for agent in driver.here)
        driver.feed(ev.AgentsLoaded(2, loaded, log_key=b"public", is_authenticated=True))
        for agent in list(driver.turns):
            driver.end(agent)
        return driver

    @pytest.fixture
    def client(self, driver: Driver) -> Client:
        client = Client(driver)
        client.offer(("a", "k1", b"\x011"))
        driver.feed(msg.LogOpened(2, b"certificate"))
        return client

    def told(self, driver: Driver) -> list[int]:
        return [said.newest for said in driver.all_of(msg.OpenLog)]

    def test_batch_bears_the_certificate(self, driver: Driver, client: Client) -> None:
        assert driver.all_of(msg.OpenLog) == [msg.OpenLog(2, b"public")]
        assert driver.last(ev.AppendBatch).certificate == b"certificate"

    def test_newest_durable_batch_is_told_once_a_second_and_holds_nothing_up(
        self, driver: Driver, client: Client
    ) -> None:
        for number in (1, 2, 3):
            client.append()
            client.offer(("b", f"k{number}", b"\x011"))
        assert self.told(driver) == [0] and driver.last(ev.AppendBatch).number == 4
        driver.feed(ev.TimerFired(), after_ns=host_log.REPORT_INTERVAL_NS)
        assert self.told(driver) == [0, 3], "batch 4 is not durable yet"

    def test_first_batch_after_a_silence_is_told_at_once(self, driver: Driver, client: Client) -> None:
        driver.feed(ev.TimerFired(), after_ns=host_log.REPORT_INTERVAL_NS)
        client.append()
        assert self.told(driver) == [0, 1]

    def test_it_is_told_until_the_coordinator_knows(self, driver: Driver, client: Client) -> None:
        client.append()
        driver.feed(ev.TimerFired(), after_ns=host_log.REPORT_INTERVAL_NS)
        driver.feed(ev.TimerFired(), after_ns=host_log.REQUEST_RETRY_NS)
        assert self.told(driver) == [0, 1, 1]
        driver.feed(msg.Welcome(1, "c"))
        assert self.told(driver) == [0, 1, 1, 1], "another leader"
        driver.feed(msg.LogOpened(2, b"certificate", 1))
        driver.feed(ev.TimerFired(), after_ns=10 * host_log.REPORT_INTERVAL_NS)
        assert len(self.told(driver)) == 4, "nothing is new"

    def test_what_became_durable_meanwhile_is_told_next(self, driver: Driver, client: Client) -> None:
        client.append()
        driver.feed(ev.TimerFired(), after_ns=host_log.REPORT_INTERVAL_NS)
        client.offer(("b", "k2", b"\x011"))
        client.append()
        driver.feed(msg.LogOpened(2, b"certificate", 1))
        driver.feed(ev.TimerFired(), after_ns=host_log.REPORT_INTERVAL_NS)
        assert self.told(driver) == [0, 1, 2]

    def test_another_plan_has_another_log(self, driver: Driver, client: Client) -> None:
        client.append()
        driver.receive_plan(3)
        driver.feed(ev.TimerFired(), after_ns=host_log.REPORT_INTERVAL_NS)
        assert self.told(driver) == [0]


def test_input_is_acknowledged_and_has_its_turn_when_its_batch_is_durable(driver: Driver, client: Client) -> None:
    request = client.offer(("a", "k1", b"\x011"))
    assert request not in client.answers and "a" not in driver.turns
    client.append()
    assert client.answers[request] == [("accepted", 1)]
    assert driver.turns["a"] == ev.StartTurn("a", 1, "input", "@shop", b"\x011")


def test_what_comes_meanwhile_is_the_next_batch(driver: Driver, client: Client) -> None:
    first = client.offer(("a", "k1", b"\x011"))
    second = client.offer(("a", "k2", b"\x012"), ("b", "k1", b"\x013"))
    third = client.offer(("a", "k3", b"\x014"))
    assert client.batches[1:] == [(2, ["k1"])]
    client.append()
    assert client.batches[2:] == [(3, ["k2", "k1", "k3"])]
    client.append()
    assert [client.answers[x] for x in (first, second, third)] == [
        [("accepted", 1)],
        [("accepted", 2), ("accepted", 2)],
        [("accepted", 3)],
    ]


def test_batches_are_bounded_and_hold_one_at_least(
    driver: Driver, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_log, "BATCH_BYTES_MAX", 10)
    client.offer(("a", "k0", b"\x010"))
    client.offer(*[("a", f"k{n}", b"\x01" + bytes(size)) for n, size in ((1, 5), (2, 3), (3, 30), (4, 1))])
    for _ in range(4):
        client.append()
    assert [keys for _, keys in client.batches[1:]] == [["k0"], ["k1", "k2"], ["k3"], ["k4"]]


def test_key_that_comes_again_is_answered_with_its_number(driver: Driver, client: Client) -> None:
    first, second = client.offer(("a", "k1", b"\x011")), client.offer(("a", "k1", b"\x011"))
    assert second not in client.answers, "it is not durable yet, so nobody may be told that it was taken"
    client.append()
    third = client.offer(("a", "k1", b"\x011"))
    driver.end("a")
    fourth = client.offer(("a", "k1", b"\x011"))
    assert [client.answers[x] for x in (first, second, third, fourth)] == [
        [("accepted", 1)],
        [("repeated", 1)],
        [("repeated", 1)],
        [("repeated", 1)],
    ]
    assert "a" not in driver.turns and len(client.batches) == 2


@pytest.mark.parametrize("is_consumed", [False, True])
def test_key_with_another_payload_is_refused(driver: Driver, client: Client, is_consumed: bool) -> None:
    client.offer(("a", "k1", b"\x011"))
    client.append()
    if is_consumed:
        driver.end("a")
    request = client.offer(("a", "k1", b"\x012"))
    assert client.answers[request] == [("refused", 1)]
    assert client.reason(request) == "key 'k1' was used for another input of a: give each input a key of its own"


@pytest.mark.parametrize(
    ("offered", "status", "reason"),
    [
        (("z", "k", b"\x01"), "retry", "agent z is not on host h1, but on h2"),
        (("nobody", "k", b"\x01"), "retry", "agent nobody is not on host h1"),
        (("a", "", b"\x01"), "refused", "a key has 1 to 128 characters, not 0"),
        (("a", "k" * 129, b"\x01"), "refused", "a key has 1 to 128 characters, not 129"),
        (("a", "k", b""), "refused", "it is no message"),
        (("a", "k", b"\x00\x00\x01mS"), "refused", "it is no message"),
    ],
)
def test_what_is_not_admitted_is_answered_at_once(
    driver: Driver, client: Client, offered: tuple[str, str, bytes], status: str, reason: str
) -> None:
    request = client.offer(offered)
    assert client.answers[request] == [(status, 0)] and client.reason(request) == reason
    assert len(client.batches) == 1


def test_agent_that_stops_takes_no_more(driver: Driver, client: Client) -> None:
    driver.wake("a")
    driver.end("a", stops=True)
    request = client.offer(("a", "k1", b"\x011"))
    assert client.answers[request] == [("refused", 0)] and client.reason(request) == "agent a has stopped"


def test_agent_that_no_complete_epoch_holds_is_not_spoken_to_yet(driver: Driver, client: Client) -> None:
    driver.wake("a")
    driver.end("a", spawns=[("c", "k", b"S")])
    driver.feed(msg.AgentsReserved(driver.last(msg.ReserveAgents).request, 3, (), driver.plan, ""))
    driver.end("c")
    request = client.offer(("c", "k1", b"\x011"))
    assert client.answers[request] == [("retry", 0)]
    assert client.reason(request) == "agent c is new: no complete epoch holds it yet"
    for epoch, is_complete in ((3, True), (4, False)):
        driver.feed(msg.EndEpoch(epoch, is_complete))
        assert client.told(("c", "k1", b"\x011")) == [("retry", 0)], epoch
    driver.feed(msg.EndEpoch(5, True))
    client.offer(("c", "k1", b"\x011"))
    client.append()
    assert driver.turns["c"].what == "input"


def test_store_that_hangs_admits_no_more(driver: Driver, client: Client) -> None:
    first = client.offer(("a", "k1", b"\x011"))
    driver.feed(ev.LogStatusChanged(driver.last(ev.AppendBatch).log, "the disk is full"))
    again, other = client.offer(("a", "k1", b"\x011")), client.offer(("a", "k2", b"\x012"))
    assert client.reason(other) == "the host log cannot be written: the disk is full" and again not in client.answers
    client.append()
    assert client.answers[first] == [("accepted", 1)] and client.answers[again] == [("repeated", 1)]
    client.offer(("a", "k2", b"\x012"))
    assert client.batches[-1] == (3, ["k2"])


def test_batch_of_an_earlier_plan_that_hangs_does_not_close_this_one(driver: Driver, client: Client) -> None:
    """Nothing would open it again: no batch of this plan is on its way."""
    earlier = driver.last(ev.AppendBatch).log
    log = LogName(earlier.plan - 1, earlier.host, earlier.start)
    driver.feed(ev.LogStatusChanged(log, "the store has not answered"))
    request = client.offer(("a", "k1", b"\x011"))
    client.append()
    assert client.answers[request] == [("accepted", 1)]


def test_inputs_that_wait_are_bounded(driver: Driver, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_inputs, "WAITING_MAX", 2)
    request = client.offer(*[("a", f"k{n}", b"\x01") for n in range(3)])
    client.append()
    assert client.answers[request] == [("accepted", 1), ("accepted", 2), ("retry", 0)]
    monkeypatch.setattr(host_inputs, "QUEUED_BYTES_MAX", 1)
    client.offer(("b", "on its way", b"\x01"))
    client.offer(("b", "k2", b"\x01\x02"))
    assert client.reason(client.offer(("b", "k3", b"\x01"))) == "host h1 has too many inputs that wait for the store"


def test_in_one_request_nothing_of_an_agent_is_taken_behind_what_is_not(
    driver: Driver, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients lean on it: else what they give again would come behind what they gave later."""
    monkeypatch.setattr(host_inputs, "QUEUED_BYTES_MAX", 10)
    monkeypatch.setattr(host_inputs, "WAITING_MAX", 4)
    sizes = (3, 9, 1, 1)
    request = client.offer(
        *[(agent, f"{agent}{n}", bytes([1] * size)) for n, size in enumerate(sizes) for agent in "ab"]
    )
    while request not in client.answers:
        client.append()
    taken = [status for status, _ in client.answers[request]]
    for agent in (taken[::2], taken[1::2]):
        assert agent == sorted(agent), "accepted ones first, then those to be given again"
    assert "retry" in taken and "accepted" in taken


# ---- turns ----------------------------------------------------------------------------------------------------------


def test_checkpoint_holds_number_and_keys_and_not_what_waits(driver: Driver, client: Client) -> None:
    client.offer(("a", "k1", b"\x011"), ("a", "k2", b"\x012"))
    client.append()
    driver.end("a")
    driver.feed(msg.BeginEpoch(1, 1))
    driver.end("a")
    (capture,) = [x for x in driver.all_of(ev.CaptureState) if x.agent == "a"]
    assert capture.control.inputs.number == 2 and capture.control.timers == []
    assert [(key.key, key.number, key.is_dead_lettered) for key in capture.control.inputs.keys] == [
        ("k1", 1, False),
        ("k2", 2, False),
    ]


def test_input_whose_handler_fails_for_good_is_a_dead_letter_and_consumed(driver: Driver, client: Client) -> None:
    client.offer(("a", "k1", b"\x011"))
    client.append()
    driver.feed(ev.TurnFailed("a", 1, "ValueError: no", 5))
    (letter,) = driver.core.agents["a"].dead_letters
    assert (letter.sender, letter.payload) == ("@shop", b"\x011")
    assert driver.last(ev.MessageDeadLettered).what == "input"
    found = driver.core.agents["a"].inputs
    assert found is not None and found.saved().keys[0].is_dead_lettered and found.consumed == 1
    assert client.told(("a", "k1", b"\x011")) == [("repeated", 1)]


def test_keys_are_forgotten_by_number_and_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_io, "KEYS_KEPT", 3)
    found = AgentInputs()

    def consume(admitted_ns: int) -> list[str]:
        made = LoggedInput("a", found.numbered + 1, "shop", f"k{found.numbered + 1}", b"", admitted_ns)
        found.add(made, is_durable=True)
        found.consume(made, is_dead_lettered=False)
        return list(found.keys)

    for _ in range(4):
        last = consume(WALL_NS)
    assert last == ["k2", "k3", "k4"]
    monkeypatch.setattr(agent_io, "KEYS_KEPT", 1000)
    monkeypatch.setattr(agent_io, "STEP_NS", agent_io.KEYS_KEPT_NS // 4)
    for quarter in range(1, 5):
        last = consume(WALL_NS + quarter * agent_io.STEP_NS)
    assert last == [f"k{number}" for number in range(2, 9)], "an hour"
    assert consume(WALL_NS + 4 * agent_io.STEP_NS + 1) == ["k5", "k6", "k7", "k8", "k9"]
    assert AgentInputs(found.saved()).saved() == found.saved()
    assert AgentInputs(found.saved()).span_ns == found.span_ns


def test_a_clock_that_jumps_makes_no_key_old() -> None:
    found = AgentInputs()
    for number, admitted_ns in enumerate((0, WALL_NS, 2 * WALL_NS, WALL_NS, 3 * WALL_NS), 1):
        made = LoggedInput("a", number, "shop", f"k{number}", b"", admitted_ns)
        found.add(made, is_durable=True)
        found.consume(made, is_dead_lettered=False)
    assert list(found.keys) == ["k1", "k2", "k3", "k4", "k5"]


def test_inputs_are_consumed_in_their_order_or_not_at_all() -> None:
    found = AgentInputs(SavedInputs(4, []))
    with pytest.raises(ProtocolError, match="input 6 of a follows 4"):
        found.add(logged("a", 6), is_durable=True)
    found.add(logged("a", 5), is_durable=True)
    with pytest.raises(ProtocolError, match="input 6 of a is consumed after 4"):
        found.consume(logged("a", 6), is_dead_lettered=False)


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_plan_gives_agents_what_they_have_not_consumed_and_sends_clients_away(driver: Driver, client: Client) -> None:
    acknowledged = client.offer(("a", "k1", b"\x011"))
    client.append()
    on_its_way = client.offer(("a", "k2", b"\x012"))
    waiting = client.offer(("a", "k3", b"\x013"))
    old = LogName(1, "h1", 1)
    driver.receive_plan(2, begun=1, line=1)
    assert client.answers[waiting] == [("retry", 0)] and on_its_way not in client.answers
    assert client.answers[acknowledged] == [("accepted", 1)]
    assert client.told(("a", "k1", b"\x011")) == [("retry", 0)], "nothing is here yet"

    driver.checkpoints = {agent: AgentCheckpoint(agent=agent, kind="k", epoch=1, is_started=True) for agent in "ab"}
    found = (logged("a", 1, "k1", b"\x011"), logged("a", 2, "k2", b"\x012"), logged("z", 1))
    driver.load(2, *found)
    assert driver.turns["a"].payload == b"\x011"
    driver.end("a")
    assert driver.turns["a"].payload == b"\x012"
    driver.feed(ev.BatchAppended(old, 3))
    assert client.answers[on_its_way] == [("accepted", 2)], "the outcome of the old log is known now"
    driver.end("a")
    assert "a" not in driver.turns, "and it is not given to the agent twice"
    client.offer(("a", "k4", b"\x014"))
    client.open()
    assert driver.last(ev.AppendBatch).log == LogName(2, "h1", 1)
    assert driver.last(ev.AppendBatch).number == 1 and driver.last(ev.AppendBatch).inputs[0].number == 3


def test_batch_that_met_a_seal_was_not_taken(driver: Driver, client: Client) -> None:
    request, behind = client.offer(("a", "k1", b"\x011")), client.offer(("a", "k2", b"\x012"))
    batch = driver.last(ev.AppendBatch)
    driver.feed(ev.LogSealed(batch.log, batch.number))
    assert client.answers[request] == [("retry", 0)] and client.reason(request) == "the fleet recovers"
    assert client.told(("a", "k3", b"\x013")) == [("retry", 0)]
    assert len(client.batches) == 2, "nothing is written behind a seal, where nobody would find it"
    assert "a" not in driver.turns and behind not in client.answers
    driver.receive_plan(2)
    assert client.answers[behind] == [("retry", 0)]


def test_inputs_of_an_agent_that_is_nowhere_wait_until_it_is_created_again(driver: Driver) -> None:
    driver.receive_plan(2)
    found = (logged("c", 1, "k1", b"\x011"), logged("c", 2, "k2", b"\x012"))
    driver.load(2, *found)
    for agent in ("a", "b"):
        driver.end(agent)
    driver.wake("a")
    driver.end("a", spawns=[("c", "k", b"S")])
    driver.feed(msg.AgentsReserved(driver.last(msg.ReserveAgents).request, 0, (), 2, ""))
    assert driver.turns["c"].what == "create"
    driver.end("c")
    assert driver.turns["c"].payload == b"\x011"
    driver.end("c")
    assert driver.turns["c"].payload == b"\x012"


# ---- answers --------------------------------------------------------------------------------------------------------


def ask(driver: Driver, request: int, agent: str, key: str, *, is_early: bool = False) -> None:
    driver.feed(ev.ReplyAwaited(request, agent, key, is_early))


def asked(driver: Driver) -> dict[int, tuple[str, int, bytes]]:
    answers = {x.request: x.answer for x in driver.all_of(ev.AnswerAsk)}
    return {request: (x.status, x.number, x.reply) for request, x in answers.items()}


def test_early_answer_is_told_at_the_end_of_the_turn_and_the_final_one_when_an_epoch_holds_it(
    driver: Driver, client: Client
) -> None:
    client.offer(("a", "k1", b"\x011"), ("a", "k2", b"\x012"))
    client.append()
    ask(driver, 1, "a", "k1", is_early=True)
    ask(driver, 2, "a", "k1")
    ask(driver, 3, "a", "k2")
    assert asked(driver) == {} and driver.all_of(msg.WantEpoch) == []
    driver.end("a", reply=b"\x01yes")
    assert asked(driver) == {1: ("replied", 1, b"\x01yes")}
    assert driver.all_of(msg.WantEpoch) == [msg.WantEpoch(1)]
    driver.end("a", reply=b"\x01no")
    driver.feed(msg.EndEpoch(1, False, "aborted"))
    assert 2 not in asked(driver), "nothing holds it"
    driver.feed(msg.EndEpoch(2, True, "", ("a", "elsewhere"), (1, 7)))
    assert asked(driver)[2] == ("replied", 1, b"\x01yes") and 3 not in asked(driver)
    assert len(driver.all_of(msg.WantEpoch)) == 3, "each epoch that was not enough is followed by another one"
    driver.feed(msg.EndEpoch(3, True, "", ("a",), (2,)))
    assert asked(driver)[3] == ("replied", 2, b"\x01no")
    ask(driver, 4, "a", "k1")
    assert asked(driver)[4] == ("replied", 1, b"\x01yes"), "again, the same"


def test_dead_letter_is_an_answer_too(driver: Driver, client: Client) -> None:
    client.offer(("a", "k1", b"\x011"))
    client.append()
    ask(driver, 1, "a", "k1", is_early=True)
    driver.feed(ev.TurnFailed("a", 1, "ValueError: no", 5))
    assert asked(driver) == {1: ("buried", 1, b"")}


def test_who_asks_for_what_was_never_sent_is_told_so_and_elsewhere_is_asked_again(
    driver: Driver, client: Client
) -> None:
    ask(driver, 1, "a", "nothing")
    ask(driver, 2, "b", "nothing")
    ask(driver, 3, "z", "k")
    assert {request: status for request, (status, _, _) in asked(driver).items()} == {
        1: "unknown",
        2: "unknown",
        3: "retry",
    }


def test_plan_sends_those_who_wait_away_and_what_it_brings_is_final(driver: Driver, client: Client) -> None:
    client.offer(("a", "k1", b"\x011"))
    client.append()
    driver.end("a", reply=b"\x01yes")
    ask(driver, 1, "a", "k1")
    found = driver.core.agents["a"].inputs
    assert found is not None
    saved = found.saved()
    driver.receive_plan(2, begun=1, line=1)
    assert asked(driver)[1] == ("retry", 0, b"")
    driver.checkpoints = {"a": AgentCheckpoint(agent="a", kind="k", epoch=1, is_started=True, inputs=saved)}
    driver.checkpoints["b"] = AgentCheckpoint(agent="b", kind="k", epoch=1, is_started=True)
    driver.load(2)
    ask(driver, 2, "a", "k1")
    assert asked(driver)[2] == ("replied", 1, b"\x01yes")


def test_agent_that_has_left_answers_nobody(driver: Driver, client: Client) -> None:
    client.offer(("a", "k1", b"\x011"))
    client.append()
    driver.end("a", reply=b"\x01yes", stops=True)
    driver.feed(msg.EndEpoch(1, True, "", ("a",), (1,)))
    driver.feed(msg.AgentRetired(driver.last(msg.RetireAgent).request, (), ""))
    ask(driver, 1, "a", "k1")
    assert asked(driver)[1][0] == "retry", "its host of old knows nothing of it"


def test_agent_that_has_stopped_stays_until_its_answer_may_be_told(driver: Driver, client: Client) -> None:
    client.offer(("a", "k1", b"\x011"))
    client.append()
    driver.end("a", reply=b"\x01yes", stops=True)
    assert driver.all_of(msg.RetireAgent) == [] and driver.last(msg.WantEpoch) == msg.WantEpoch(1)
    ask(driver, 1, "a", "k1")
    driver.feed(msg.EndEpoch(1, True, "", ("a",), (1,)))
    assert asked(driver)[1] == ("replied", 1, b"\x01yes") and len(driver.all_of(msg.RetireAgent)) == 1


def test_agent_that_checkpoints_alone_takes_one_for_who_waits() -> None:
    driver = Driver(protocol="hmnr")
    client = Client(driver)
    client.offer(("a", "k1", b"\x011"))
    client.open()
    client.append()
    driver.end("a", reply=b"\x01yes")
    taken = len([x for x in driver.all_of(ev.TakeCheckpoint) if x.agent == "a"])
    ask(driver, 1, "a", "k1")
    made = [x for x in driver.all_of(ev.TakeCheckpoint) if x.agent == "a"]
    assert len(made) == taken + 1 and made[-1].control.inputs.number == 1
    ask(driver, 2, "a", "k1")
    assert len([x for x in driver.all_of(ev.TakeCheckpoint) if x.agent == "a"]) == taken + 1, "nothing has moved since"


def test_old_answers_are_forgotten_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_io, "REPLIES_BYTES_MAX", 10)
    found = AgentInputs()
    for number in (1, 2, 3):
        made = logged("a", number)
        found.add(made, is_durable=True)
        found.consume(made, is_dead_lettered=False, reply=bytes(6))
    assert [len(key.reply) for key in found.saved().keys] == [0, 0, 6] and found.reply_bytes == 6
    assert AgentInputs(found.saved()).reply_bytes == 6
