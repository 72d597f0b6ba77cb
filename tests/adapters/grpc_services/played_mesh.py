"""A mesh of services that pass tokens, played by chance: ledgers and stamps as they are; network, cuts, crashes and services by hand.

What a service does is written as generators: they yield calls, and everything between two yields is one piece. Five ways to take tokens in:

- take: a leaf; swap: a leaf that gives one token back in its answer;
- carry: asks the next service first, and keeps one token behind that (run again after a recovery);
- split: asks two others, one after the other, before it keeps one;
- relay: keeps one token, says so (`changed`), and sends the rest on (not run again).

The judge's books are the services' own: each state lists the calls that it made, took and got answers to. It knows nothing of ledgers.
"""

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import msgspec

from snapline.adapters.grpc.ledger import (
    CallAnswer,
    CallLedger,
    CallStamp,
    DivergedCallError,
    HandlerExecution,
    LedgerImage,
    ServiceCall,
    judge,
)

SERVICES, TOKENS = 3, 12
WAYS = ("take", "swap", "carry", "split", "relay")


class Tokens(msgspec.Struct):
    """A service's state, and what it has seen."""

    tokens: int = TOKENS
    made: list[str] = []
    took: list[str] = []
    got: list[str] = []


class Wanted(msgspec.Struct):
    """A request."""

    amount: int
    hops: int


Work = Generator[tuple[int, str, Wanted], int, int]


@dataclass
class Rules:
    """What mutants leave out."""

    ledger: type[CallLedger] = CallLedger
    records_before_requests: bool = True
    records_before_answers: bool = True
    refuses_older_plans: bool = True


@dataclass
class Saved:
    state: bytes
    ledger: LedgerImage


@dataclass
class Request:
    sender: int
    receiver: int
    stamp: CallStamp
    method: str
    payload: bytes


@dataclass
class Response:
    sender: int
    receiver: int
    plan: int
    epoch: int
    id: str
    answer: CallAnswer
    told: Sequence[str]


@dataclass
class Frame:
    """A handler that waits for the answer to a call of its."""

    work: Work
    handling: HandlerExecution
    request: Request


@dataclass
class Service:
    number: int
    ledger: CallLedger
    state: Tokens = field(default_factory=Tokens)
    plan: int = 1
    recorded: int = 0
    waits: dict[str, tuple[ServiceCall, Frame | None]] = field(default_factory=dict)
    told: dict[str, Sequence[str]] = field(default_factory=dict)


class Mesh:
    """The world. `step` does one thing by chance; `settle` lets everything end."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.chance = random.Random(seed)
        self.rules = rules
        self.services = [Service(number, rules.ledger(f"s{number}")) for number in range(SERVICES)]
        self.wire: list[Request | Response] = []
        self.plan, self.epoch, self.plan_epoch = 1, 0, 0
        self.open: dict[int, dict[int, Saved]] = {}
        self.line: dict[int, Saved] = {each.number: self._saved(each) for each in self.services}
        self.cuts = 0

    # ---- chance -----------------------------------------------------------------------------------------------------

    def step(self, judge_cut: "Callable[[Mesh], None]") -> None:
        what = self.chance.random()
        service = self.chance.choice(self.services)
        if what < 0.12:
            self._give(service)
        elif what < 0.78 and self.wire:
            self._deliver(self.wire.pop(self.chance.randrange(len(self.wire))))
        elif what < 0.83 and self.wire:
            self.wire.append(self.chance.choice(self.wire))
        elif what < 0.87 and self.wire:
            self.wire.pop(self.chance.randrange(len(self.wire)))
        elif what < 0.90:
            for call, _ in service.waits.values():
                self._send(service, call)
        elif what < 0.94 and len(self.open) < 2:
            self.epoch += 1
            self.open[self.epoch] = {}
        elif what < 0.99 and self.open:
            self._record(service, max(self.open))
        elif what > 0.992:
            self._recover(service)
        if service.plan < self.plan and self.chance.random() < 0.2:
            self._apply(service)
        for each in self.services:
            each.ledger.validate()
        self._complete(judge_cut)

    def _give(self, service: Service) -> None:
        if service.state.tokens < 4:
            return
        amount = self.chance.randint(2, 4)
        service.state.tokens -= amount
        receiver = self.chance.choice([each.number for each in self.services if each is not service])
        call = self._call(service, None, receiver, self.chance.choice(WAYS), Wanted(amount, amount - 1))
        service.state.made.append(call.id)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _call(self, service: Service, frame: Frame | None, receiver: int, method: str, wanted: Wanted) -> ServiceCall:
        handling = frame.handling if frame is not None else None
        wanted_call = ServiceCall("", f"{receiver}", method, b"")
        call = service.ledger.call(handling, wanted_call, msgspec.msgpack.encode(wanted))
        service.waits[call.id] = (call, frame)
        self._send(service, call)
        return call

    def _send(self, service: Service, call: ServiceCall) -> None:
        service.ledger.requeue_finished(call.target, service.told.pop(call.id, ()))
        told = service.told[call.id] = service.ledger.finished_calls_for(call.target)
        stamp = CallStamp(service.plan, service.recorded, call.id, call.digest, told)
        self.wire.append(Request(service.number, int(call.target), stamp, call.method, call.request))

    def _deliver(self, item: Request | Response) -> None:
        receiver = self.services[item.receiver]
        if isinstance(item, Request):
            self._requested(receiver, item)
        elif item.plan == receiver.plan:
            self._responded(receiver, item)

    def _requested(self, service: Service, item: Request) -> None:
        verdict = judge(item.stamp, plan=service.plan, is_loaded=True, recorded=service.recorded)
        if verdict == "wait":
            self.wire.append(item)
            return
        if verdict == "refuse" and self.rules.refuses_older_plans:
            return
        if verdict == "record" and self.rules.records_before_requests:
            self._record(service, item.stamp.epoch)
        service.ledger.forget(item.stamp.over)
        begun = service.ledger.begin(item.stamp.id, item.stamp.digest)
        if isinstance(begun, CallAnswer):
            self._answer(service, item, begun)
        elif begun.made == 0 and not begun.is_changed and not _is_running(service, begun):
            work = self._work(service, item, begun)
            self._go_on(service, Frame(work, begun, item), None)

    def _work(self, service: Service, item: Request, handling: HandlerExecution) -> Work:
        wanted = msgspec.msgpack.decode(item.payload, type=Wanted)
        state, onward = service.state, (service.number + 1) % SERVICES
        back = 0
        if item.method == "carry" and wanted.hops:
            back = yield onward, "carry" if wanted.hops > 1 else "swap", Wanted(wanted.amount - 1, wanted.hops - 1)
            state.tokens += 1
        elif item.method == "split" and wanted.hops > 1:
            back = yield onward, "swap", Wanted(1, 0)
            yield (onward + 1) % SERVICES, "take", Wanted(wanted.amount - 2, 0)
            state.tokens += 1
        elif item.method == "relay" and wanted.hops:
            service.ledger.changed(handling)
            state.tokens += 1
            state.took.append(item.stamp.id)
            back = yield onward, "swap", Wanted(wanted.amount - 1, 0)
            state.tokens += back
            return 0
        else:
            back = 1 if item.method == "swap" else 0
            state.tokens += wanted.amount - back
        state.took.append(item.stamp.id)
        return back

    def _go_on(self, service: Service, frame: Frame, value: int | None) -> None:
        try:
            receiver, method, wanted = next(frame.work) if value is None else frame.work.send(value)
        except StopIteration as ended:
            answer = CallAnswer(response=msgspec.msgpack.encode(ended.value))
            service.ledger.finish(frame.handling, answer)
            self._answer(service, frame.request, answer)
        else:
            self._call(service, frame, receiver, method, wanted)

    def _answer(self, service: Service, item: Request, answer: CallAnswer) -> None:
        self.wire.append(
            Response(
                service.number, item.sender, service.plan, service.recorded, item.stamp.id, answer, item.stamp.over
            )
        )

    def _responded(self, service: Service, item: Response) -> None:
        call, frame = service.waits.get(item.id, (None, None))
        if call is None:
            return
        if item.epoch > service.recorded and self.rules.records_before_answers:
            self._record(service, item.epoch)
        del service.waits[item.id]
        if item.told:
            service.ledger.confirm_finished(call.target, item.told)
        service.ledger.requeue_finished(call.target, [x for x in service.told.pop(item.id) if x not in item.told])
        service.ledger.answered(call, frame.handling if frame is not None else None)
        value = msgspec.msgpack.decode(item.answer.response) if not item.answer.code else 0
        if frame is not None:
            self._go_on(service, frame, value)
        elif "/" not in item.id:
            service.state.tokens += value
            service.state.got.append(item.id)
        else:
            service.state.tokens += value

    # ---- cuts and plans -----------------------------------------------------------------------------------------------

    def _saved(self, service: Service) -> Saved:
        return Saved(msgspec.msgpack.encode(service.state), service.ledger.image())

    def _record(self, service: Service, epoch: int) -> None:
        if epoch <= service.recorded or service.plan != self.plan:
            return
        for number in range(service.recorded + 1, epoch + 1):
            if number in self.open:
                self.open[number][service.number] = self._saved(service)
        service.recorded = epoch

    def _complete(self, judge_cut: "Callable[[Mesh], None]") -> None:
        for epoch, saved in list(self.open.items()):
            if len(saved) == SERVICES:
                del self.open[epoch]
                self.line = saved
                self.cuts += 1
                judge_cut(self)

    def _recover(self, dead: Service) -> None:
        """A service dies: all go back. The others hear of it when they hear of it."""
        self.plan, self.plan_epoch = self.plan + 1, self.epoch
        self.open.clear()
        self._apply(dead)

    def _apply(self, service: Service) -> None:
        """Back to the line: a plan's line stays the line until an epoch of the plan is complete."""
        saved = self.line[service.number]
        service.state = msgspec.msgpack.decode(saved.state, type=Tokens)
        service.ledger.restore(saved.ledger)
        service.plan, service.recorded = self.plan, self.plan_epoch
        service.told = {}
        service.waits = {call.id: (call, None) for call in service.ledger.pending.values()}
        for call, _ in service.waits.values():
            self._send(service, call)

    # ---- the end ------------------------------------------------------------------------------------------------------

    def from_line(self) -> "Mesh":
        """Another world, in which all have just gone back to the line."""
        other = Mesh(0, self.rules)
        other.line, other.plan = self.line, 2
        for service in other.services:
            other._apply(service)
        return other

    def settle(self) -> None:
        """No faults and no new calls: what is under way ends."""
        for _ in range(10_000):
            for service in self.services:
                if service.plan < self.plan:
                    self._apply(service)
            if self.wire:
                self._deliver(self.wire.pop(0))
            elif any(service.waits for service in self.services):
                for service in self.services:
                    for call, _ in service.waits.values():
                        self._send(service, call)
            else:
                return
        raise AssertionError("calls are under way for ever")


def _is_running(service: Service, handling: HandlerExecution) -> bool:
    return any(frame is not None and frame.handling is handling for _, frame in service.waits.values())


def check_books(states: list[Tokens]) -> None:
    """Of a cut: nobody took what was not made, or got an answer to what was not taken; and nothing twice (G1, G3)."""
    made = [call for state in states for call in state.made]
    took = [call for state in states for call in state.took]
    assert len(set(took)) == len(took), "a call was taken twice"
    assert {call.split("/")[0] for call in took} <= set(made), "a call was taken that was never made"
    got = [call for state in states for call in state.got]
    assert set(got) <= set(took) and len(set(got)) == len(got), "an answer was got that was never given, or twice"


def check_cut(mesh: Mesh) -> None:
    """Of the newest cut: its books, and that a fleet that goes on from it comes to its end with every token, and every call taken once."""
    check_books([msgspec.msgpack.decode(saved.state, type=Tokens) for saved in mesh.line.values()])
    after = mesh.from_line()
    after.settle()
    check_end(after)


def check_end(mesh: Mesh) -> None:
    states = [service.state for service in mesh.services]
    check_books(states)
    assert sum(state.tokens for state in states) == SERVICES * TOKENS, "tokens were lost or made"
    assert {call for state in states for call in state.made} <= {call for state in states for call in state.took}
    for service in mesh.services:
        image = service.ledger.image()
        assert not image.pending and not image.journals, "a call that has ended is still kept"


def play(seed: int, rules: Rules, steps: int = 400) -> int:
    """One world; returns how many cuts it had. Raises AssertionError or DivergedCallError as judged."""
    mesh = Mesh(seed, rules)
    for _ in range(steps):
        mesh.step(check_cut)
    mesh.settle()
    check_end(mesh)
    return mesh.cuts


__all__ = ["DivergedCallError", "Rules", "check_cut", "play"]
