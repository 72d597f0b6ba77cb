"""Work of a simulated fleet: when it is done, and which conditions every cut must satisfy."""

import copy
import functools
from collections.abc import Callable, Mapping

import snapline
from snapline.agent_runtime.fleet import Fleet
from snapline.errors import UsageError
from snapline.protocols.names import is_autonomous
from snapline.protocols.policy import Single
from snapline.sim.faults.durations import duration_ns
from snapline.sim.scenario import FleetPart, TriggerPart
from snapline.sim.workloads.costs import Costs
from snapline.sim.workloads.given import GivenInputs
from snapline.sim.workloads.ledger import (
    Books,
    Ledger,
    Plan,
    WrongBooksError,
    books_of,
    check_members,
    check_pairs,
    check_timers,
    check_work,
    name_of,
    states_of,
)
from snapline.sim.workloads.nudge import Nudge

OWN_TURN_NS = 1_000_000
"""Cost of a turn of a user's fleet; if less, two agents on one host take tens of thousands of useless turns before a second fault."""

PERIOD_MAX_S = 1.0
"""A user's fleet saves at least so often: a run lasts some seconds of virtual time, and its cuts are what is checked."""

PERIOD_S = 0.5
"""Checkpoint period of a fleet whose checkpoints are manual: nobody takes them here."""

Make = Callable[[int], snapline.Agent]

Choose = Callable[[str, int], int]
"""Draws a number below the second argument for the situation that the first one names; 0 is benign."""

SECOND_NS = 1_000_000_000

RAISES_ONE_IN = 8
"""Inputs whose handlers mostly raise."""


class Workload:
    """A fleet and its invariants. This base knows none.

    Attributes:
        fleet: with the scenario's protocol and trigger; the world decides when it is over.
        ends: `is_done` becomes true some day.
        costs: what work costs its hosts.
        rolls_back: its agents ask for rollbacks (`ctx.rollback`), so a person looks after those that are refused.
        has_gone_back: behind a complete epoch, on purpose or since its bytes are lost. The world says so before it calls `check_end`.
        failure: the traceback of an invariant that could not be asked; "" if all is well.
        calling_plan: the plan of the host whose call a stub answers now.
        inputs: what a user gives to the fleet, instead of `input_of`; None: nothing.
    """

    rolls_back = False
    has_gone_back = False

    def __init__(self, fleet: Fleet, *, ends: bool = False, costs: Costs | None = None) -> None:
        self.fleet = fleet
        self.ends = ends
        self.costs = costs or Costs()
        self.failure, self.calling_plan = "", 0
        self.inputs: GivenInputs | None = None

    def check_cut(self, cut: snapline.Cut) -> str | None:
        """A sentence on what is wrong with a cut that was said to be consistent."""
        return None

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        """Return what a client gives an agent as its `serial`-th input; no two may have the same bytes. None: this agent takes none."""
        return None

    @property
    def takes_inputs(self) -> bool:
        """Return whether agents of this fleet take inputs from clients."""
        return self.inputs is not None or type(self).input_of is not Workload.input_of

    def is_done(self, states: Mapping[str, object]) -> bool:
        """Return whether no agent will take a turn again: nothing is left to send, all was consumed, no timer is set."""
        return False

    def check_end(self, states: Mapping[str, object]) -> str | None:
        """A sentence on what is wrong with the states of a fleet of which `is_done`."""
        return None


def own_workload(fleet: Fleet, every: str = "") -> Workload:
    """Return the workload of a user's fleet, of which nothing is known; `every`: how often it saves instead of as `own_triggers` says."""
    copied = copy.copy(fleet)  # the user's own stays as it is
    copied.triggers = own_triggers(fleet, every)
    return Workload(copied, costs=Costs(turn_ns=OWN_TURN_NS))


def own_triggers(fleet: Fleet, every: str) -> tuple[Single, ...]:
    """Return when a user's fleet saves: at least each second, whatever it says.

    Raises:
        UsageError: `every` is no duration.
    """
    if every:
        return (snapline.Every(duration_ns(every) / SECOND_NS),)
    if not fleet.triggers and not is_autonomous(fleet.protocol):
        return (snapline.Every(PERIOD_S),)
    return tuple([_quick(trigger) for trigger in fleet.triggers])


def _quick(trigger: Single) -> Single:
    match trigger:
        case snapline.Every() if trigger.seconds > PERIOD_MAX_S:
            return snapline.Every(PERIOD_MAX_S, trigger.jitter)
        case _:
            return trigger


class RestingWorkload(Workload):
    """Somebody's fleet, of which is known only that it comes to rest: then its work is done."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, ends=True)

    def is_done(self, states: Mapping[str, object]) -> bool:
        return True  # it is asked only when nothing moves


class LedgerWorkload(Workload):
    """Agents that keep the books of `ledger`.

    Attributes:
        total: the work at the beginning: the messages that there will have been at the end.
    """

    def __init__(self, fleet: Fleet, *, total: int, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.total = total

    def check_cut(self, cut: snapline.Cut) -> str | None:
        try:
            self.check_books(books_of(cut))
        except WrongBooksError as error:
            return str(error)
        return None

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        return nudge(client, serial, choose)

    def check_books(self, books: Books) -> None:
        """All invariants.

        Raises:
            WrongBooksError: one does not hold.
        """
        check_members(books, self.fleet.agents)
        check_pairs(books)
        check_work(books, self.total)
        check_timers(books)

    def is_done(self, states: Mapping[str, object]) -> bool:
        takes = 0
        for state in states.values():
            if not isinstance(state, Ledger) or state.is_ticking:
                return False
            takes += state.takes
        return self.ends and takes == self.total

    def check_end(self, states: Mapping[str, object]) -> str | None:
        try:
            books = Books(states_of(states), {}, {}, {}, 0)
            self.check_books(books)
        except WrongBooksError as error:
            return f"at the end: {error}"
        left = sum([state.work for state in books.states.values()])
        return f"at the end: {left} of work is not done" if left else None


def nudge(client: str, serial: int, choose: Choose) -> Nudge:
    """Return the input for agents of most patterns: it causes a turn and an answer."""
    return Nudge(client, serial, choose("raises", RAISES_ONE_IN) == RAISES_ONE_IN - 1)


def make_fleet(part: FleetPart, make: Make, *, own: list[Single] | None = None) -> Fleet:
    """The fleet of a pattern; `make` makes the agent of an index. `own`: triggers instead of the scenario's."""
    agents = {name_of(index): functools.partial(make, index) for index in range(part.agents)}
    triggers = triggers_of(part.protocol, part.trigger) if own is None else own
    return Fleet(part.pattern.name, agents=agents, protocol=part.protocol, triggers=triggers)


def varied(fleet: Fleet, part: FleetPart) -> Fleet:
    """The same agents under another protocol and trigger. It ends when it comes to rest: `stop_when` needs epochs.

    Raises:
        FleetDefinitionError: the trigger does not fit the protocol.
    """
    return Fleet(
        fleet.name,
        agents=fleet.agents,
        protocol=part.protocol,
        triggers=triggers_of(part.protocol, part.trigger),
        epoch_timeout_s=fleet.epoch_timeout_s,
        log_bytes_max=fleet.log_bytes_max,
        simulate=fleet.simulate,
    )


def triggers_of(protocol: str, trigger: TriggerPart) -> list[Single]:
    """The scenario's trigger as the fleet takes it.

    Raises:
        UsageError: the values are not possible. What does not fit the protocol is the fleet's to refuse.
    """
    match trigger.kind:
        case "period":
            return [snapline.Every(trigger.every_ns / SECOND_NS, trigger.jitter)]
        case "messages":
            return [snapline.EveryMessages(trigger.messages)]
        case "adaptive":
            return [snapline.Adaptive(least_s=trigger.every_ns / SECOND_NS)]
        case "none":
            return [snapline.Manual()] if is_autonomous(protocol) else []


def plan_of(part: FleetPart, pause_ns: int) -> Plan:
    """Return the settings that all agents share."""
    return Plan(part.agents, part.pattern.payload_bytes, pause_ns)


def pause_ns(part: FleetPart, senders: int) -> int:
    """Return each sender's pause after a message, so that all `senders` together keep to the rate; 0 if there is no rate."""
    rate = part.pattern.rate_per_s
    return max(1, round(senders * SECOND_NS / rate)) if rate else 0


def check_agents(part: FleetPart, *, least: int = 2, most: int = 0) -> None:
    """Refuse fleets that cannot play the pattern.

    Raises:
        UsageError: too few agents, or too many.
    """
    if part.agents < least:
        raise UsageError(f"fleet.agents is {part.agents}: pattern {part.pattern.name} needs at least {least}")
    if most and part.agents > most:
        raise UsageError(f"fleet.agents is {part.agents}: pattern {part.pattern.name} takes at most {most}")


def lanes_of(agents: int, length: int) -> list[range]:
    """Return all agents in lanes of about `length`, none shorter, unless there are fewer agents in all."""
    lanes = max(1, agents // length)
    return [range(lane * agents // lanes, (lane + 1) * agents // lanes) for lane in range(lanes)]
