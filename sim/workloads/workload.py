"""Work of a simulated fleet: its end condition and its invariants over cuts.

CPU costs of work on a simulated host at full speed. Work that is not listed here takes no time.
"""

import copy
import functools
from collections.abc import Callable, Mapping

import msgspec

import snapline
from snapline.agent_runtime.fleet import Fleet
from snapline.errors import UsageError
from snapline.protocols.names import is_autonomous
from snapline.protocols.policy import Single
from snapline.sim.faults.durations import duration_ns
from snapline.sim.scenario import FleetPart, TriggerPart
from snapline.sim.workloads.ledger import (
    CutContents,
    InvariantViolatedError,
    Ledger,
    Nudge,
    Plan,
    check_members,
    check_pairs,
    check_timers,
    check_work,
    contents_of,
    name_of,
    states_of,
)
from snapline.sim.workloads.user_inputs import GivenInputs


class Costs(msgspec.Struct, frozen=True):
    """Costs of work, in virtual nanoseconds.

    Attributes:
        turn_ns: cost of a turn: a plain handler with its share of the overhead.
        batch_ns: cost of one pass over all other pending events.
        capture_ns: fixed cost of capturing one agent's state (measured: 2.5 ms for fifty agents).
        capture_byte_ns: additional capture cost of each byte of the state.
        send_ns: cost of sending a message under a logged protocol: the sender's log entry and the protocol's stamp.
    """

    turn_ns: int = 20_000
    batch_ns: int = 30_000
    capture_ns: int = 50_000
    capture_byte_ns: int = 1
    send_ns: int = 0

    def for_messages(self, times: int) -> "Costs":
        """Return costs for messages that each represent `times` many, including their share of images."""
        return msgspec.structs.replace(
            self,
            turn_ns=times * self.turn_ns,
            send_ns=times * self.send_ns,
            capture_byte_ns=times * self.capture_byte_ns,
        )


OWN_TURN_NS = 1_000_000
"""Cost of a turn of a user's fleet. A lower cost makes two agents on a host take tens of thousands of useless turns between faults."""

PERIOD_MAX_S = 1.0
"""Longest checkpoint period of a user's fleet: a run lasts a few seconds of virtual time, and only its cuts are checked."""

PERIOD_S = 0.5
"""Checkpoint period of a fleet with manual checkpoints, since no operator takes them in the simulator."""

Make = Callable[[int], snapline.Agent]

Choose = Callable[[str, int], int]
"""Function (choice name, n) that draws a number from 0 to n - 1; 0 is the harmless choice."""

SECOND_NS = 1_000_000_000

RAISES_ONE_IN = 8
"""One in this number of inputs has a handler that usually raises."""


class Workload:
    """Fleet and its invariants. This base has no invariants.

    Attributes:
        fleet: the fleet, with the scenario's protocol and trigger. The world decides when a run is over.
        ends: whether `is_done` becomes true eventually.
        costs: CPU costs of work on the hosts.
        rolls_back: agents request rollbacks (`ctx.rollback`), so an operator handles those that are refused.
        has_gone_back: the fleet was rolled back behind a complete epoch, on purpose or because its bytes were lost. The world
            sets it before it calls `check_end`.
        failure: traceback of an invariant that raised an unexpected exception; "" if none did.
        calling_plan: the plan of the host whose call a stub answers now.
        inputs: a user's inputs, used instead of `input_of`; None: no such inputs.
    """

    requests_rollbacks = False
    was_rolled_back = False

    def __init__(self, fleet: Fleet, *, ends: bool = False, costs: Costs | None = None) -> None:
        self.fleet = fleet
        self.ends = ends
        self.costs = costs or Costs()
        self.failure, self.calling_plan = "", 0
        self.inputs: GivenInputs | None = None

    def check_cut(self, cut: snapline.Cut) -> str | None:
        """Return a sentence that describes a violation in a cut, or None."""
        return None

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        """Return a client's `serial`-th input to an agent, or None if the agent takes none. No two inputs may have the same bytes."""
        return None

    @property
    def takes_inputs(self) -> bool:
        """Return whether agents of this fleet take inputs from clients."""
        return self.inputs is not None or type(self).input_of is not Workload.input_of

    def is_done(self, states: Mapping[str, object]) -> bool:
        """Return whether no agent will take another turn: nothing is left to send or consume, and no timer is set."""
        return False

    def check_end(self, states: Mapping[str, object]) -> str | None:
        """Return a sentence that describes a violation in the final states of a fleet that `is_done`, or None."""
        return None


def user_workload(fleet: Fleet, every: str = "") -> Workload:
    """Return the workload of a user's fleet without known invariants. `every`: checkpoint period that replaces its triggers."""
    copied = copy.copy(fleet)  # do not change the user's object
    copied.triggers = user_triggers(fleet, every)
    return Workload(copied, costs=Costs(turn_ns=OWN_TURN_NS))


def user_triggers(fleet: Fleet, every: str) -> tuple[Single, ...]:
    """Return the triggers of a user's fleet, with periods limited to `PERIOD_MAX_S`.

    Raises:
        UsageError: `every` is not a duration.
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


class UserWorkload(Workload):
    """Workload of a fleet that is known only to come to rest. Its work is done when it is at rest."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, ends=True)

    def is_done(self, states: Mapping[str, object]) -> bool:
        return True  # called only when nothing moves


class LedgerWorkload(Workload):
    """Workload of agents that keep the ledgers of `ledger`.

    Attributes:
        total: initial work, which equals the number of messages sent by the end.
    """

    def __init__(self, fleet: Fleet, *, total: int, ends: bool) -> None:
        super().__init__(fleet, ends=ends)
        self.total = total

    def check_cut(self, cut: snapline.Cut) -> str | None:
        try:
            self.check_contents(contents_of(cut))
        except InvariantViolatedError as error:
            return str(error)
        return None

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        return nudge(client, serial, choose)

    def check_contents(self, books: CutContents) -> None:
        """Check all invariants.

        Raises:
            InvariantViolatedError: an invariant does not hold.
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
            books = CutContents(states_of(states), {}, {}, {}, 0)
            self.check_contents(books)
        except InvariantViolatedError as error:
            return f"at the end: {error}"
        left = sum([state.work for state in books.states.values()])
        return f"at the end: {left} of work is not done" if left else None


def nudge(client: str, serial: int, choose: Choose) -> Nudge:
    """Return the input that most patterns use; it causes a turn and an answer."""
    return Nudge(client, serial, choose("raises", RAISES_ONE_IN) == RAISES_ONE_IN - 1)


def make_fleet(part: FleetPart, make: Make, *, own: list[Single] | None = None) -> Fleet:
    """Return the fleet of a pattern. `make` makes the agent with a given index. `own`: triggers that replace the scenario's."""
    agents = {name_of(index): functools.partial(make, index) for index in range(part.agents)}
    triggers = triggers_of(part.protocol, part.trigger) if own is None else own
    return Fleet(part.pattern.name, agents=agents, protocol=part.protocol, triggers=triggers)


def with_protocol(fleet: Fleet, part: FleetPart) -> Fleet:
    """Return a fleet of the same agents with another protocol and trigger.

    It has no `stop_when`, which needs epochs, and ends when it comes to rest.

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
    """Return the scenario's trigger in the form that a fleet takes. The fleet rejects a trigger that does not fit its protocol.

    Raises:
        UsageError: a value is invalid.
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
    """Return the pause of each sender after a message that keeps all `senders` together at the rate; 0 if there is no rate."""
    rate = part.pattern.rate_per_s
    return max(1, round(senders * SECOND_NS / rate)) if rate else 0


def check_agents(part: FleetPart, *, least: int = 2, most: int = 0) -> None:
    """Check that the pattern supports the number of agents.

    Raises:
        UsageError: there are too few or too many agents.
    """
    if part.agents < least:
        raise UsageError(f"fleet.agents is {part.agents}: pattern {part.pattern.name} needs at least {least}")
    if most and part.agents > most:
        raise UsageError(f"fleet.agents is {part.agents}: pattern {part.pattern.name} takes at most {most}")


def lanes_of(agents: int, length: int) -> list[range]:
    """Divide the agents into lanes of at least about `length`; fewer agents than that form one lane."""
    lanes = max(1, agents // length)
    return [range(lane * agents // lanes, (lane + 1) * agents // lanes) for lane in range(lanes)]
