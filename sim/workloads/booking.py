"""Booking patterns. Clients send requests, and a durable turn executes each request as a small program of randomly drawn tasks.

A request lists its tasks (`TASKS`) and its ending (`ENDINGS`), so this one pattern covers the combinations that occur in users' programs.
The tasks are steps, effects of every kind, calls, waits and outputs. The tasks may belong to a saga that either succeeds or is undone. Some
endings make the turn fail, roll the fleet back or stop the agent. Every agent also sends some requests to itself, so that a fleet without
clients has work, too.

The external service is a stub (`Fleet(simulate=…)`) whose state survives host crashes. The service's ledger, the receipts in the agents'
states and the answers to clients must agree. Every second request gathers consecutive effects and steps. For each kind of effect, the
service asserts:

- *keyed*: the service accepts explicit keys, and a booking is never paid under a second key while the first payment is valid.
- *unkeyed*: an effect is undone under the key of its payment. If a turn is repeated in a different history, it pays under a different key.
- *probed*: an effect may be called again under the same key only after a probe.
- *once*: the service ignores keys, so a call under a key that has a valid payment charges the customer twice.

For all kinds, the service asserts that compensations are executed in the reverse order of the request's tasks. Valid payments without an
explicit key are exempt from this check, because the service cannot know whether a recovery discarded their history.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import name_of, shares
from snapline.sim.workloads.workload import Choose, Workload, check_agents, make_fleet
from snapline.sim.world.kernel import START_OF_TIME_NS

EFFECTS = ("keyed", "unkeyed", "probed", "once")
TASKS = (*EFFECTS, "step", "wait", "call", "emit")
"""Kinds of tasks that a request may contain."""

ENDINGS = ("stands", "block stands", "block undone", "fails", "rolls back", "stops")
"""Endings of a request, in this order: the request succeeds; it succeeds in a saga; its saga is undone; it becomes a dead letter;
it rolls the fleet back and then succeeds; it succeeds and then stops the agent."""

_ENDINGS_DRAWN = (*ENDINGS[:2] * 3, *ENDINGS[2:4] * 2, ENDINGS[4])

TASKS_MAX = 4
STOPS_ONE_IN = 24

MESSAGES_OF_A_REQUEST = 40
"""Estimated number of messages per request: the request itself and the messages that its tasks send and receive."""

ROLLS_BACK_UNTIL_NS = START_OF_TIME_NS + 3_000_000_000
"""Wall-clock time on a host after which no request rolls the fleet back. Agents do not remember rollbacks, so this
limit ensures that a run ends."""

ROLLS_BACK = 0.5
RESTARTS_ONE_IN, RESTARTS = 3, 0.5
"""Every third request that succeeds restarts its turn, with this probability in each attempt."""

LONG, LONG_S = 0.25, 4.0
"""Probability of a long wait, and its duration in seconds. A long wait is longer than a recovery."""
SLOW_S = 0.2
"""Delay in seconds of the service that ignores keys. The delay lets host crashes and rollbacks happen during a call."""

UNDO = "/undo"
TIMEOUT_S, WAITS_S, CALL_S = 2.0, (0.1, 0.5, 1.0, 5.0, 5.0), 5.0


class Book(snapline.Message, frozen=True):
    """Request to execute tasks. `serial` counts the client's requests."""

    client: str
    serial: int
    tasks: list[str]
    ending: str

    @property
    def name(self) -> str:
        return f"{self.client}-{self.serial}"


class Booked(snapline.Message, frozen=True):
    """Answer to a request. `draw` is a random number that differs between histories, so that a reverted answer can be distinguished from a
    valid answer."""

    name: str
    how: str
    draw: float


class Told(snapline.Message, frozen=True):
    """Output that an agent emits while it executes a request."""

    name: str
    place: int
    draw: float


class Ask(snapline.Message, frozen=True):
    name: str


class Answer(snapline.Message, frozen=True):
    name: str


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of a request ("done", "undone", or "stuck" if a compensation failed), with the keys of the effects that the request
    executed."""

    how: str
    keys: dict[str, str] = {}


class BookerState(msgspec.Struct):
    """State of a `Booker` agent.

    Attributes:
        own: number of requests that the agent sends to itself.
        ended: outcome of each request that has ended, by request name.
        asked: number of the neighbour's calls that the agent has answered.
        looked_ns: wall-clock time when the agent's last step began.
    """

    index: int
    agents: int
    own: int
    ended: dict[str, Outcome] = {}
    asked: int = 0
    looked_ns: int = 0


class FullError(Exception):
    pass


class _Sale(msgspec.Struct):
    """The service's record of a sale under one key. `first` and `last` are the service's call numbers of the first and the last request or
    probe with this key. `plan` is the recovery plan of the host that sent the last request or probe. `is_undone` means that the sale was
    permanently undone."""

    task: str
    first: int
    last: int
    plan: int = 0
    is_done: bool = False
    is_undone: bool = False
    is_probed: bool = False


class Service:
    """External service that keeps a ledger of its sales. A task's name has the form `agent/request/place/kind`. `plan_of_call` returns the
    recovery plan that the calling host follows."""

    def __init__(self, plan_of_call: Callable[[], int] = int) -> None:
        self._plan_of_call = plan_of_call
        self.sales: dict[str, _Sale] = {}
        self._calls = 0

    def pay(self, task: str, *, key: str) -> str:
        """Pay for a task, and return the receipt."""
        kind = task.rpartition("/")[2]
        self._calls += 1
        sale = self.sales.setdefault(key, _Sale(task, self._calls, self._calls))
        sale.last, sale.plan = self._calls, self._plan_of_call()
        if sale.is_undone:
            raise ConnectionRefusedError(f"{task} was undone under {key}")
        if sale.is_done:
            assert kind != "once", f"{task} is charged twice, under {key}"
            assert kind != "probed" or sale.is_probed, f"{task} is called again under {key}, and nobody has probed it"
        others = [other for other in self.standing(task) if other != key]
        assert kind in ("unkeyed",) or not others, (
            f"{task} is paid under {key} although its payment under {others[0]} is valid"
        )
        sale.is_done = True
        return f"{task} {key}"

    async def pay_slowly(self, task: str, *, key: str) -> str:
        """Pay for a task immediately, but return the receipt only after a delay."""
        receipt = self.pay(task, key=key)
        await asyncio.sleep(SLOW_S)
        return receipt

    def undo(self, task: str, *, key: str) -> None:
        """Undo a payment. If the payment has not arrived yet, it is refused when it arrives."""
        paid_key = key.removesuffix(UNDO)
        assert key.endswith(UNDO), f"{task} is undone under the key {key}"
        # The payment's request may have been lost.
        sale = self.sales.setdefault(paid_key, _Sale(task, self._calls, self._calls))
        assert sale.task == task, f"{task} is undone under {key}, which stands for {sale.task}"
        if sale.is_undone:
            return
        is_known = (
            sale.plan == self._plan_of_call()
        )  # else a turn may have taken it over from a history that was given up
        later = [other.task for other in self.sales.values() if is_known and _is_after(other, sale)]
        assert not later, f"{task} is undone before {later[0]}, which stands behind it"
        sale.is_undone = True

    def find(self, task: str, *, key: str) -> str | None:
        """Probe a key. Return the receipt for the payment under this key, or None if there is no valid payment."""
        sale = self.sales.get(key)
        if sale is None or not sale.is_done or sale.is_undone:
            self.sales.setdefault(key, _Sale(task, self._calls, self._calls)).is_probed = True
            return None
        sale.is_probed, sale.last, sale.plan = True, self._calls, self._plan_of_call()
        return f"{task} {key}"

    def stubs(self) -> dict[str, Callable[..., Any]]:
        """Return the service's stub functions by name."""
        names: dict[str, Callable[..., Any]] = {"look": int, "probed/probe": self.find}
        for kind in EFFECTS:
            names |= {kind: self.pay_slowly if kind == "once" else self.pay, f"{kind}/undo": self.undo}
        return names

    def standing(self, task: str) -> list[str]:
        """Return the keys under which the task was paid and not undone."""
        return [key for key, sale in self.sales.items() if sale.task == task and sale.is_done and not sale.is_undone]

    def is_sold(self, key: str) -> bool:
        sale = self.sales.get(key)
        return sale is not None and sale.is_done and not sale.is_undone


def _is_after(other: _Sale, sale: _Sale) -> bool:
    """Return whether `other` is a valid sale for a later task of the same request.

    The result can be true only if both sales were last requested under the same recovery plan. Unkeyed sales are ignored, because no turn
    knows their keys if their history was discarded.
    """
    if other.task.endswith("/unkeyed") or other.plan != sale.plan:
        return False
    request, place = _place_of(sale.task)
    other_request, other_place = _place_of(other.task)
    return other_request == request and other_place > place and other.is_done and not other.is_undone


def _place_of(task: str) -> tuple[str, int]:
    request, place, _ = task.rsplit("/", 2)
    return request, int(place)


def never(*args: object, key: str) -> str | None:
    """Raise an error. The simulator must call a stub instead of this function."""
    raise AssertionError("a stub stands in its place")


def undo(task: str, *, key: str) -> None:
    """Compensate a payment. This function is never called, because the simulator calls a stub instead."""
    never(key=key)


class Booker(snapline.Agent):
    """Agent that executes the tasks of its requests. See the module docstring."""

    state: BookerState
    retries = (0.0, 0.05)

    async def on_start(self, ctx: snapline.Context) -> None:
        for serial in range(self.state.own):
            ctx.send(ctx.agent, own_request(ctx.agent, self.state.index, serial))

    @snapline.handler(durable=True)
    async def on_book(self, message: Book, ctx: snapline.Context) -> None:
        keys: dict[str, str] = {}
        outcome = "done"
        if message.ending.startswith("block"):
            outcome = await self._block(message, keys, ctx)
        else:
            await self._all(message, keys, ctx)
        draw = ctx.random()
        if message.ending == "rolls back" and draw < ROLLS_BACK and ctx.now() < ROLLS_BACK_UNTIL_NS:
            ctx.rollback(f"{message.name} by {draw}")
        if "stands" in message.ending and message.serial % RESTARTS_ONE_IN == 1 and draw < RESTARTS:
            ctx.restart_turn(f"{message.name} by {draw}", at_most=100)
        if message.ending == "fails":
            raise ValueError(f"{message.name} fails after all")
        self.state.ended[message.name] = Outcome(outcome, keys)
        if message.client != ctx.agent:
            ctx.reply(Booked(message.name, outcome, draw))
        if message.ending == "stops":
            ctx.stop()

    async def _block(self, message: Book, keys: dict[str, str], ctx: snapline.Context) -> str:
        try:
            async with ctx.saga(message.name):
                await self._all(message, keys, ctx)
                if message.ending == "block undone":
                    raise FullError
        except (FullError, snapline.EffectFailedError) as error:
            return "stuck" if getattr(error, "__notes__", ()) else "undone"
        return "done"

    async def _all(self, message: Book, keys: dict[str, str], ctx: snapline.Context) -> None:
        for places in _groups(message):
            kinds = [message.tasks[place] for place in places]
            tasks = [f"{ctx.agent}/{message.name}/{place}/{kind}" for place, kind in zip(places, kinds, strict=True)]
            if len(places) > 1:
                members = [
                    self._pay(task, kind, ctx) if kind in EFFECTS else ctx.step("look", int, str(place))
                    for place, kind, task in zip(places, kinds, tasks, strict=True)
                ]
                found = await ctx.gather(*members)
                keys |= {task: key for task, kind, key in zip(tasks, kinds, found, strict=True) if kind in EFFECTS}
            elif kinds[0] in EFFECTS:
                keys[tasks[0]] = await self._pay(tasks[0], kinds[0], ctx)
            else:
                await self._do(message, places[0], kinds[0], ctx)

    async def _pay(self, task: str, kind: str, ctx: snapline.Context) -> str:
        receipt: str = await ctx.effect(
            kind,
            never,
            task,
            key="" if kind == "unkeyed" else task,
            compensate=(undo, task),
            probe=never if kind == "probed" else None,
            timeout_s=TIMEOUT_S,
            retries=() if kind == "once" else WAITS_S,
            repeatable=kind != "once",
        )
        paid_task, _, key = receipt.partition(" ")
        assert paid_task == task, f"{task} was given the receipt {receipt}"
        return key

    async def _do(self, message: Book, place: int, kind: str, ctx: snapline.Context) -> None:
        match kind:
            case "step":
                before_ns = ctx.now()
                result = await ctx.step("look", int, str(place))
                assert result == place, f"a step of {message.name} gave {result}, not {place}"
                self.state.looked_ns = before_ns
            case "wait":
                is_long = ctx.random() < LONG
                await ctx.sleep(LONG_S if is_long else 0.001 + 0.05 * ctx.random())
            case "call" if self.state.index + 1 < self.state.agents:
                await self._call(message, ctx)
            case "emit":
                ctx.emit("bookings", Told(message.name, place, ctx.random()))
            case _:
                pass

    async def _call(self, message: Book, ctx: snapline.Context) -> None:
        """Call the next agent, which may already have stopped."""
        try:
            answer = await ctx.call(name_of(self.state.index + 1), Ask(message.name), Answer, timeout_s=CALL_S)
        except (snapline.UnansweredCallError, snapline.WaitTimeoutError):
            return
        assert answer.name == message.name, f"{message.name} was given the answer to {answer.name}"

    @snapline.handler
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        self.state.asked += 1
        ctx.reply(Answer(message.name))


def _groups(message: Book) -> list[list[int]]:
    """Return the places of the request's tasks, grouped by what is gathered."""
    groups: list[list[int]] = []
    for place, kind in enumerate(message.tasks):
        is_member = message.serial % 2 == 1 and kind in (*EFFECTS, "step")
        if is_member and groups and message.tasks[place - 1] in (*EFFECTS, "step"):
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def own_request(agent: str, index: int, serial: int) -> Book:
    """Return the request with this number that an agent sends to itself. The request is the same in all histories."""
    mixed = 7 * index + 5 * serial
    tasks = [TASKS[(mixed + 3 * place) % len(TASKS)] for place in range(1 + mixed % TASKS_MAX)]
    return Book(agent, serial, tasks, _ENDINGS_DRAWN[mixed % len(_ENDINGS_DRAWN)])


class BookingWorkload(Workload):
    """Workload that checks that the agents and the external service agree on all bookings. `service` is the current run's external
    service."""

    requests_rollbacks = True

    def __init__(self, fleet: snapline.Fleet, *, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.service = Service()
        self._helpless: set[str] = set()

    def new_service_stubs(self) -> dict[str, Callable[..., Any]]:
        """Create a new service for a run, and return its stub functions."""
        self.service = Service(lambda: self.calling_plan)
        return self.service.stubs()

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        tasks = [TASKS[choose(f"task {place}", len(TASKS))] for place in range(1 + choose("tasks", TASKS_MAX))]
        ending = _ENDINGS_DRAWN[choose("ending", len(_ENDINGS_DRAWN))]
        may_stop = self.fleet.agents and agent not in list(self.fleet.agents)[:2]
        if may_stop and choose("stops", STOPS_ONE_IN) == STOPS_ONE_IN - 1:
            ending = "stops"
        return Book(client, serial, tasks, ending)

    def check_cut(self, cut: snapline.Cut) -> str | None:
        """Check that the service has executed everything that is marked as done in the cut. These checks must succeed, because a recovery
        never undoes an event that belongs to a complete cut."""
        self._helpless = {
            dead_letter.agent for dead_letter in cut.dead_letters if not isinstance(dead_letter.message, Book)
        }
        # If the fleet ends by `stop_when`, the last cut may contain requests that are paid and not completed.
        self._helpless |= {turn.agent for turn in cut.pending_turns}
        return self._check(cut.states)

    def is_done(self, states: Mapping[str, object]) -> bool:
        return all(isinstance(state, BookerState) for state in states.values())

    def check_end(self, states: Mapping[str, object]) -> str | None:
        return self._check(states) or ("" if self.was_rolled_back else self._check_rest(states)) or None

    def _check(self, states: Mapping[str, object]) -> str | None:
        for agent, state in states.items():
            assert isinstance(state, BookerState)
            for name, outcome in state.ended.items():
                for task, key in outcome.keys.items():
                    is_done = self.service.is_sold(key)
                    if outcome.how != "stuck" and is_done != (outcome.how == "done"):
                        now = "stands" if is_done else "does not stand"
                        return f"{name} of {agent} is {outcome.how}, and {task} {now} under {key}"
        return None

    def _check_rest(self, states: Mapping[str, object]) -> str:
        """Check that each valid payment belongs to exactly one completed request. The check applies only if the run has not discarded any
        history on purpose."""
        for task in dict.fromkeys(sale.task for sale in self.service.sales.values()):
            agent, name, *_ = task.split("/")
            state = states.get(agent)
            if not isinstance(state, BookerState) or agent in self._helpless:
                continue
            outcome, keys = state.ended.get(name), self.service.standing(task)
            if outcome is None and keys:
                return f"{task} stands, and {name} of {agent} was not done"
            if len(keys) > 1:
                return f"{task} is paid {len(keys)} times, under {', '.join(keys)}"
        return ""


def make_booking(part: FleetPart) -> BookingWorkload:
    """Return a workload that sends approximately as many messages as the scenario specifies."""
    check_agents(part)
    own = shares(part.pattern.messages // MESSAGES_OF_A_REQUEST, part.agents)
    fleet = make_fleet(part, functools.partial(_booker, part.agents, own))
    workload = BookingWorkload(fleet, ends=part.pattern.messages > 0)
    fleet.simulate = workload.new_service_stubs
    if part.pattern.name == "booking-until":
        fleet.stop_when = functools.partial(_are_done, wanted=max(1, sum(own) // 2))
    return workload


def _are_done(cut: snapline.Cut, *, wanted: int) -> bool:
    states: Sequence[object] = list(cut.states.values())
    return sum(len(state.ended) for state in states if isinstance(state, BookerState)) >= wanted


def _booker(agents: int, own: list[int], index: int) -> Booker:
    return Booker(BookerState(index, agents, own[index]))
