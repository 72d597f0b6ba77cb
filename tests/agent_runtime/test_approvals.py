"""Approvals: a durable turn asks, and the first answer counts, once, in whatever history."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.agent_runtime.driving import MS, Driver
from tests.agent_runtime.test_durable import SEED, Clock, Go, Told
from tests.agent_runtime.test_effects import checkpoint
from tests.agent_runtime.test_inputs import WALL_NS, Client
from tests.agent_runtime.test_inputs import ask as ask_answer
from tests.agent_runtime.test_inputs import asked as answers

from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import (
    DETAILS_BYTES_MAX,
    DONE,
    LATE,
    Approval,
    Pause,
    SegmentEnd,
    TurnJournal,
    approval_digest,
    approval_id,
    encode_details,
)
from snapline.agent_runtime.host import approvals
from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.approvals import DECISIONS_MAX, KEPT_MAX
from snapline.agent_runtime.message_encoding import encode_message
from snapline.errors import EncodingError, MessageTooLargeError, ProtocolError, UsageError, WaitTimeoutError
from snapline.messages.approvals import (
    APPROVAL_PREFIX,
    NOTE_CHARACTERS_MAX,
    AnswerOutcome,
    ApprovalAnswer,
    approval_answer_payload,
    decision_text,
    read_approval_answer,
    read_outcome,
)
from snapline.messages.client_requests import REFUSED, InputOutcome
from snapline.storage.log.log_record import LoggedInput
from snapline.storage.packs.checkpoint import AgentCheckpoint, ApprovalDecision, JournalEntry

# -- the handler's side ---------------------------------------------------------------------------------------------------


def context() -> Context:
    ctx = Context("a", 1, "z", Clock())
    ctx.begin(journal=TurnJournal(SEED))
    return ctx


def asked(*arguments: Any, **options: Any) -> tuple[SegmentEnd, Any]:
    """Where a handler stands that asks this, and its coroutine."""

    async def handler(ctx: Context) -> Approval:
        return await ctx.approval(*arguments, **options)

    coroutine = handler(context())
    stand = coroutine.send(None)
    assert isinstance(stand, SegmentEnd)
    return stand, coroutine


def result_of(coroutine: Any, entry: JournalEntry) -> Approval:
    with pytest.raises(StopIteration) as end:
        coroutine.send(entry)
    assert isinstance(end.value.value, Approval)
    return end.value.value


def test_the_request_holds_what_people_see_and_its_digest() -> None:
    details = {"order": 17, "amount": 1200}
    stand, coroutine = asked("refund", details, expires_s=60)
    encoded = encode_details("refund", details)
    assert stand.waits == JournalEntry("approval", "refund", approval_digest("refund", encoded), "", encoded)
    assert stand.timeout_ns == 60 * 10**9
    others = [("refund", {"order": 17, "amount": 1201}), ("refund 2", details), ("refund", None)]
    assert len({approval_digest(title, encode_details(title, x)) for title, x in [*others, ("refund", details)]}) == 4
    coroutine.close()


@pytest.mark.parametrize("is_granted", [True, False])
def test_an_answer_is_returned_with_its_author_and_note(is_granted: bool) -> None:
    _, coroutine = asked("refund")
    answer = ApprovalAnswer("0" * 32, is_granted, "fine")
    entry = JournalEntry("approval", "refund", b"", DONE, approvals.result_of(answer), "@ada")
    assert result_of(coroutine, entry) == Approval(is_granted, "ada", "fine")


@pytest.mark.parametrize("default", [True, False])
def test_an_approval_that_expires_gives_its_default(default: bool) -> None:
    _, coroutine = asked("refund", expires_s=1, default=default)
    assert result_of(coroutine, JournalEntry("approval", "refund", b"", LATE)) == Approval(default)


def test_an_approval_that_expires_without_a_default_raises() -> None:
    _, coroutine = asked("refund", expires_s=90)
    with pytest.raises(WaitTimeoutError, match="nobody has decided on 'refund' within 90 s"):
        coroutine.send(JournalEntry("approval", "refund", b"", LATE))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((5,), UsageError, "an approval is named by a text"),
        (("refund", object()), EncodingError, "details of approval 'refund' cannot be shown"),
        (("refund", "x" * DETAILS_BYTES_MAX), MessageTooLargeError, "65,5.. bytes, the limit is 65,536"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        asked(*arguments)


def test_a_plain_turn_asks_nobody() -> None:
    ctx = Context("a", 1, "z", Clock())
    ctx.begin()
    with pytest.raises(UsageError, match=r"ctx\.approval waits, and a plain turn cannot"):
        ctx.approval("refund").send(None)


# -- the core's side ------------------------------------------------------------------------------------------------------

GO = encode_message(Go())
DETAILS = encode_details("refund", {"order": 17})
REFUND = JournalEntry("approval", "refund", approval_digest("refund", DETAILS), "", DETAILS)
TOLD = JournalEntry("receive", "Told")
ID = approval_id(SEED, 0, REFUND.digest)


def asking(driver: Driver | None = None, *, expires_ns: int | None = None) -> Driver:
    """A driver whose agent `a` waits for an approval."""
    driver = driver or Driver()
    driver.remote_sends("z", "a", GO)
    driver.end("a", pause=Pause(SEED, REFUND, expires_ns, []))
    return driver


class People(Client):
    """People who answer, each with a key and a name of their own, at a host whose log is open."""

    def say(self, name: str, *, is_granted: bool = True, approval: str = ID, note: str = "") -> InputOutcome | None:
        """Answer, and return the outcome if it is known at once."""
        self.count += 1
        payload = approval_answer_payload(ApprovalAnswer(approval, is_granted, note))
        offered = ev.OfferedInput("a", f"of {name}", payload, is_operator_command=True)
        before = len(self.driver.said)
        self.driver.feed(ev.InputsOffered(self.count, name, WALL_NS, (offered,)))
        said = [each for each in self.driver.said[before:] if isinstance(each, ev.AnswerInputs)]
        return said[0].answers[0] if said else None

    def settle(self, name: str, *, is_granted: bool = True, approval: str = ID) -> None:
        assert self.say(name, is_granted=is_granted, approval=approval) is None
        self.open()
        self.append()


def outcome(driver: Driver, name: str) -> AnswerOutcome:
    ask_answer(driver, 77, "a", f"of {name}", is_early=True)
    status, _, reply = answers(driver)[77]
    assert status == "replied" and reply[:1] == b"\x00"
    return read_outcome(reply[1:])


def found(driver: Driver) -> JournalEntry | None:
    return driver.turns["a"].found


def granted_by(name: str) -> JournalEntry:
    result = approvals.result_of(ApprovalAnswer(ID, True))
    return JournalEntry("approval", "refund", REFUND.digest, DONE, result, f"@{name}")


def answer_of(name: str, number: int = 1, *, is_granted: bool = True, approval: str = ID) -> LoggedInput:
    """An answer as the host log contains it."""
    payload = approval_answer_payload(ApprovalAnswer(approval, is_granted))
    return LoggedInput("a", number, name, f"of {name}", payload, WALL_NS)


def saved(driver: Driver) -> AgentCheckpoint:
    control = driver.core.agents["a"].control(driver.now)
    kept = control.approvals or msgspec.UNSET
    return msgspec.structs.replace(
        checkpoint(driver), inputs=control.inputs, saved_approvals=kept, timers=control.timers
    )


def restarted(kept: AgentCheckpoint | None, *inputs: LoggedInput, protocol: str = "") -> Driver:
    """A later life from this checkpoint, or from one before any turn."""
    kept = kept or saved(Driver())
    driver = Driver(checkpoints={"a": kept}, begun=1, starts=False, here=("a",), protocol=protocol)
    driver.receive_plan(2)
    driver.turns.clear()
    driver.load(2, *inputs)
    return driver


def test_an_answer_ends_the_wait_and_its_author_is_told() -> None:
    driver = asking()
    People(driver).settle("ada")
    assert found(driver) == granted_by("ada")
    assert outcome(driver, "ada") == AnswerOutcome("taken")


def test_the_first_of_two_answers_counts_and_the_other_learns_who_was_first() -> None:
    driver = asking()
    people = People(driver)
    people.say("ada", is_granted=False)
    people.say("bob")
    people.open()
    people.append()
    entry = found(driver)
    assert entry is not None and (entry.sender, entry.result) == (
        "@ada",
        approvals.result_of(ApprovalAnswer(ID, False)),
    )
    driver.end("a", is_durable=True)
    decision = ApprovalDecision(ID, False, "ada")
    assert outcome(driver, "bob") == AnswerOutcome("decided", decision)
    refusal = people.say("cid")
    assert refusal is not None and refusal.status == REFUSED
    assert refusal.reason.endswith("is decided already: denied by ada")


@pytest.mark.parametrize("is_first", [True, False])
def test_of_an_answer_and_the_expiry_that_counts_which_comes_first(is_first: bool) -> None:
    driver = asking(expires_ns=100 * MS)
    people = People(driver)
    agent = driver.core.agents["a"]
    agent.is_held = True
    if is_first:
        people.settle("ada")
        driver.feed(ev.TimerFired(), 100 * MS)
    else:
        people.say("ada")
        driver.feed(ev.TimerFired(), 100 * MS)
        people.open()
        people.append()
    agent.is_held = False
    driver.core._mailboxes.next_turn(agent)
    driver.said += driver.core.handle(driver.now, ev.TimerFired())
    entry = agent.turn.journal[-1] if agent.turn is not None else None
    assert entry is not None and entry.outcome == (DONE if is_first else LATE)
    driver.turns["a"] = driver.last(ev.StartTurn)
    driver.end("a", is_durable=True)
    expected = AnswerOutcome("taken") if is_first else AnswerOutcome("decided", ApprovalDecision(ID, False))
    assert outcome(driver, "ada") == expected
    assert decision_text(ApprovalDecision(ID, False)) == "expired"


@pytest.mark.parametrize("other", ["details", "past", "place"])
def test_an_answer_to_another_question_is_refused(other: str) -> None:
    driver = asking()
    approval = {
        "details": approval_id(SEED, 0, approval_digest("refund", encode_details("refund", {"order": 18}))),
        "past": approval_id(bytes(16)[:-1] + b"x", 0, REFUND.digest),
        "place": approval_id(SEED, 1, REFUND.digest),
    }[other]
    refusal = People(driver).say("ada", approval=approval)
    assert refusal is not None and refusal.status == REFUSED
    assert refusal.reason.startswith(f"nobody waits for approval {approval} of agent 'a'")
    assert "a" not in driver.turns


def test_an_answer_that_comes_back_before_its_question_waits_for_it() -> None:
    """The recovery begins before the turn, so its message comes again, behind the answer."""
    driver = restarted(None, answer_of("ada"), answer_of("bob", 2, is_granted=False))
    assert outcome(driver, "ada") == AnswerOutcome("kept")
    again = restarted(saved(driver))
    for each in (driver, again):
        asking(each)
        assert found(each) == granted_by("ada")
    each = again
    each.end("a", is_durable=True)
    people = People(each)
    refusal = people.say("cid")
    assert refusal is not None and refusal.reason.endswith("granted by ada")


def test_an_answer_that_comes_back_during_an_earlier_wait_is_found() -> None:
    """The recovery begins in the turn, before its question."""
    later = approval_id(SEED, 1, REFUND.digest)
    first = Driver()
    first.remote_sends("z", "a", GO)
    first.end("a", pause=Pause(SEED, TOLD, None, []))
    driver = restarted(saved(first), answer_of("ada", approval=later))
    driver.end("a", pause=Pause(SEED, TOLD, None, []))
    assert "a" not in driver.turns
    driver.remote_sends("z", "a", encode_message(Told(1)))
    driver.end("a", pause=Pause(SEED, REFUND, None, []))
    entry = found(driver)
    assert entry is not None and (entry.kind, entry.sender) == ("approval", "@ada")
    assert outcome(driver, "ada") == AnswerOutcome("taken")


def test_an_open_approval_comes_back_with_its_expiry() -> None:
    first = asking(expires_ns=100 * MS)
    first.feed(ev.TimerFired(), 40 * MS)
    driver = restarted(saved(first))
    people = People(driver)
    driver.feed(ev.OpenWaitsRequested(5))
    (shown,) = driver.last(ev.AnswerOpenWaits).approvals
    assert (shown.id, shown.agent, shown.title, shown.details) == (ID, "a", "refund", {"order": 17})
    assert shown.expires_s == pytest.approx(0.06, abs=0.002)
    driver.end("a", pause=Pause(SEED, REFUND, 100 * MS, []))
    people.settle("ada")
    assert found(driver) == granted_by("ada")


@pytest.mark.parametrize("protocol", ["chandy-lamport", "uncoordinated"])
def test_a_command_that_was_put_off_lets_one_turn_begin(protocol: str) -> None:
    """Its author waits for the outcome, which causes a checkpoint; the agent's next turn must not begin within that."""
    payloads = [GO, encode_message(Go("x")), encode_message(Go("y")), encode_message(Told(1))]
    inputs = [
        LoggedInput("a", n, "c", f"k{n}", payload, WALL_NS) for n, payload in zip((1, 3, 4, 5), payloads, strict=True)
    ]
    inputs.insert(1, answer_of("ada", 2))
    driver = restarted(None, *inputs, protocol=protocol)
    driver.end("a", pause=Pause(SEED, TOLD, None, []))
    entry = found(driver)
    assert entry is not None and entry.result == payloads[-1]
    ask_answer(driver, 77, "a", "of ada")
    driver.end("a", is_durable=True)
    begun = []
    while "a" in driver.turns:
        begun.append(driver.turns["a"].payload)
        driver.end("a")
    assert begun == payloads[1:3]


def test_kept_answers_and_decisions_are_bounded() -> None:
    driver = restarted(None)
    agent = driver.core.agents["a"]
    for number in range(KEPT_MAX + 5):
        approval = f"{number:032x}"
        approvals.decide(agent, ApprovalDecision(approval, True, "ada"))
    assert agent.approvals is not None and len(agent.approvals.decided) == DECISIONS_MAX
    assert agent.approvals.decided[-1].id == f"{KEPT_MAX + 4:032x}"
    inputs = [
        LoggedInput("a", n + 1, "op", f"k{n}", approval_answer_payload(ApprovalAnswer(f"{n:032x}", True)), WALL_NS)
        for n in range(KEPT_MAX + 5)
    ]
    kept = restarted(None, *inputs).core.agents["a"].approvals
    assert kept is not None and len(kept.kept) == KEPT_MAX


@pytest.mark.parametrize(
    "payload",
    [
        APPROVAL_PREFIX,
        b"\x00effect",
        approval_answer_payload(ApprovalAnswer("12", True)),
        approval_answer_payload(ApprovalAnswer(ID, True, "x" * (NOTE_CHARACTERS_MAX + 1))),
    ],
)
def test_what_is_no_answer_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_approval_answer(payload)


# -- mutants --------------------------------------------------------------------------------------------------------------


def spent_before_its_question(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(approvals, "settled", lambda agent, entry: approvals.reply_to_taken())


def details_not_in_the_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(approvals, "approval_id", lambda seed, place, digest: approval_id(seed, place, b""))
    patch.setattr("tests.agent_runtime.test_approvals.ID", approval_id(SEED, 0, b""))


def last_answer_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(approvals, "_decision", lambda agent, approval: None)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (spent_before_its_question, test_an_answer_that_comes_back_before_its_question_waits_for_it),
        (last_answer_counts, test_the_first_of_two_answers_counts_and_the_other_learns_who_was_first),
        (details_not_in_the_id, test_an_open_approval_comes_back_with_its_expiry),
    ],
)
def test_a_mutant_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        test()
