"""Executes a scenario's faults. The executor's clock determines when each fault begins and ends. After the last fault, all faults are
healed.

Theory of operation
-------------------
For each kind of fault, one method begins the fault and chooses its target at random. The key of this random choice contains the fault's
index in the scenario.

*Conditions.* Faults may overlap. For example, two partitions may cut the same pair of nodes, or two crashes may hit one host. So each fault
contributes its own part to a condition of a node or link. When a fault ends, it removes only its own part. A condition remains while any of
its parts is left. If a condition has a value, the parts together determine it: the lowest speed, the highest loss rate, the sum of all
clock skews, or the most recently set delay. Invariant: the parts of all conditions determine the executor's state. The invariant does not
cover the executor's own actions, such as restarting a node that was killed at a failpoint.

*Partitions* cut the traffic between pairs of nodes, in one or both directions. The shapes of partitions are taken from Jepsen's nemeses.
Hosts and coordinators are both nodes, so a partition may split the hosts, split the coordinators, or separate hosts from coordinators.
Wherever the order of nodes matters, it is random. If all random choices are zero, nodes are in the order of their names.

*Healing.* After the last fault has ended, `heal` restores each node individually, because `Conditions` does not record nodes that were
killed at a failpoint.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from snapline.errors import UsageError
from snapline.sim.choices import Choices
from snapline.sim.faults.fault_executor import DiskMode, Executor, FailpointAction, HangingCall
from snapline.sim.faults.fault_kinds import (
    EVERY_HOST,
    ROLLING_PAUSE_NS,
    CaptureFault,
    ClockFault,
    ClogFault,
    CoordinatorFault,
    CrashFault,
    DelayFault,
    DiskFault,
    FaultKind,
    HangFault,
    HoldFault,
    LossFault,
    MembershipFault,
    PartitionFault,
    PathFault,
    PauseFault,
    ResetFault,
    SlowFault,
    SwizzleFault,
    duration_ns,
)
from snapline.sim.result import ARMED, ExecutedFault
from snapline.sim.scenario import NetworkPart, Scenario, joining_hosts

Condition = tuple[str, ...]
"""A condition's kind and the nodes that it affects, such as ("block", "h1", "c1")."""

Part = tuple[int, ...]
"""One fault's contribution to a condition: a tuple of numbers, or () if the condition has no value."""

_DISK_MODES: dict[str, DiskMode] = {
    "eio": "eio",
    "full": "full",
    "failed-sync": "failed-sync",
    "slow": "slow",
    "stale-read": "stale-read",
    "away": "away",
}

_HANGING_CALLS: dict[str, HangingCall] = {"store": "store", "stop": "stop", "loop": "loop"}


class Conditions:
    """The conditions of nodes and links that result from all active faults together.

    Attributes:
        _parts: for each condition, the parts that faults contribute to it. A condition without parts has no entry.
    """

    def __init__(self, executor: Executor, network: NetworkPart, *, absent_hosts: Iterable[str]) -> None:
        """The hosts `absent_hosts` join later in the run. These hosts count as down until `relieve` is called for them, so that no restart
        starts them too early."""
        self._executor = executor
        self._network = network
        self._parts: dict[Condition, list[Part]] = {("down", host): [()] for host in absent_hosts}

    def worsen(self, condition: Condition, part: Part = ()) -> None:
        parts = self._parts.setdefault(condition, [])
        parts.append(part)
        if part or len(parts) == 1:
            self._settle(condition)

    def relieve(self, condition: Condition, part: Part = ()) -> None:
        """Remove one part of a condition. If the removal changes the condition, update the executor's state."""
        parts = self._parts[condition]
        parts.remove(part)
        if not parts:
            del self._parts[condition]
        if part or not parts:
            self._settle(condition)

    def worsen_for(self, lasts_ns: int | None, conditions: Iterable[Condition], part: Part = ()) -> int:
        """Add a part to each condition for a duration of `lasts_ns`, where None means forever. Return the time at which the part is
        removed, or 0 if it never is."""
        listed = list(conditions)
        for condition in listed:
            self.worsen(condition, part)
        return self._end_after(lasts_ns, listed, part)

    def take_down(self, down_ns: int | None, condition: Condition, how: Callable[[str], None]) -> int:
        """Take a node down by calling `how`, for a duration of `down_ns`, where None means forever. Return the time at which the node
        restarts, or 0 if it never does."""
        how(condition[1])
        self._parts.setdefault(condition, []).append(())
        return self._end_after(down_ns, [condition], ())

    def _end_after(self, after_ns: int | None, conditions: list[Condition], part: Part) -> int:
        if after_ns is None:
            return 0

        def end() -> None:
            for condition in conditions:
                self.relieve(condition, part)

        until_ns = self._executor.now_ns + after_ns
        self._executor.at(until_ns, end)
        return until_ns

    def _settle(self, condition: Condition) -> None:
        """Make the executor's state match the parts of this condition."""
        executor = self._executor
        parts = self._parts.get(condition, [])
        match condition:
            case ("block", sender, receiver):
                (executor.block if parts else executor.unblock)(sender, receiver)
            case ("hold", sender, receiver):
                executor.hold_markers(sender, receiver, bool(parts))
            case ("pause", host):
                (executor.pause_host if parts else executor.resume_host)(host)
            case ("hang", host, what):
                executor.set_hanging(host, _HANGING_CALLS[what], bool(parts))
            case ("down", host):
                executor.start_host(host)
            case ("coordinator-down", node):
                executor.start_coordinator(node)
            case ("disk", mode, node):
                self._settle_disk(_DISK_MODES[mode], node, is_on=bool(parts))
            case _:
                self._settle_value(condition, parts)

    def _settle_value(self, condition: Condition, parts: list[Part]) -> None:
        executor = self._executor
        match condition:
            case ("loss", sender, receiver):
                executor.set_loss(sender, receiver, max((part[0] for part in parts), default=0))
            case ("delay", sender, receiver):
                usual = self._network.delay_of(sender, receiver)
                least_ns, jitter_ns = parts[-1] if parts else (usual.least_ns, usual.jitter_ns)
                executor.set_delay(sender, receiver, least_ns, jitter_ns)
            case ("slow", host):
                executor.set_speed(host, min((part[0] for part in parts), default=100))
            case ("clock", host):
                executor.set_clock(host, sum(part[0] for part in parts), sum(part[1] for part in parts))
            case ("unknown",):
                executor.set_unknown(max((part[0] for part in parts), default=0))
            case _:
                raise AssertionError(f"no condition {condition}")

    def _settle_disk(self, mode: DiskMode, node: str, *, is_on: bool) -> None:
        """Start or end a disk fault. When a disk fault ends, start it again on each node for which another condition still requires it."""
        self._executor.set_disk(node, mode, is_on)
        for other in self._parts if not is_on else ():
            if other[:2] == ("disk", mode):
                self._executor.set_disk(other[2], mode, True)


Pair = tuple[str, str]
"""Sender and receiver of a directed pair."""


def shuffled(nodes: Sequence[str], choices: Choices, index: int, what: str) -> list[str]:
    """Return the nodes in a random order, chosen for the fault with this index in the scenario."""
    left = list(nodes)
    return [left.pop(choices.pick("fault", (index, what, step), len(left))) for step in range(len(nodes))]


def all_pairs(nodes: Sequence[str]) -> list[Pair]:
    return [(sender, receiver) for sender in nodes for receiver in nodes if sender != receiver]


def pairs_cut_off(isolated: Sequence[str], nodes: Sequence[str]) -> list[Pair]:
    """Return all pairs that consist of an isolated node and another node, in both directions. Pairs with an isolated sender come first."""
    others = [node for node in nodes if node not in isolated]
    return [(inner, outer) for inner in isolated for outer in others] + [
        (outer, inner) for inner in isolated for outer in others
    ]


def pairs_of_shape(shape: str, order: Sequence[str]) -> list[Pair]:
    """Return the pairs of nodes between which a partition of this shape cuts the traffic, given an order of the nodes. Both directions are
    included. If there are too few nodes for the shape, the list is empty."""
    count = len(order)
    match shape:
        case "one":
            return pairs_cut_off(order[:1], order)
        case "pair":
            return pairs_cut_off(order[:1], order[:2])
        case "majority":
            return pairs_cut_off(order[: max(1, (count - 1) // 2)], order)
        case "minority-third":
            return pairs_cut_off(order[: max(1, count // 3)], order)
        case "bridge":
            half = 1 + (count - 1) // 2
            return pairs_cut_off(order[1:half], order[1:])
        case "majorities-ring":
            return _pairs_of_ring(order)
        case _:
            raise AssertionError(f"{shape} needs more than an order")


def one_way(pairs: Iterable[Pair], way: int) -> list[Pair]:
    """Return, for each pair of nodes, only one direction. The result contains the direction that is listed first, or the opposite direction
    if `way` is 1."""
    kept: dict[Pair, None] = {}
    for sender, receiver in pairs:
        if (receiver, sender) not in kept:
            kept[sender, receiver] = None
    return [(receiver, sender) if way else (sender, receiver) for sender, receiver in kept]


def _pairs_of_ring(order: Sequence[str]) -> list[Pair]:
    """Return the pairs of nodes to separate so that each node can reach only its nearest neighbours on a ring. In such a partition, each
    node can reach a different majority."""
    count = len(order)
    reach = (count // 2 + 1) // 2
    return [
        (order[one], order[other])
        for one in range(count)
        for other in range(count)
        if one != other and min((one - other) % count, (other - one) % count) > reach
    ]


FLIP_TRIES = 10
"""Number of times that a failed bit flip is retried, evenly spread over the fault's duration."""

_BIT_PICKS = 1 << 30
"""Number of values from which a bit's position is drawn. It exceeds the number of bits in any file; the executor takes
the position modulo the file's number of bits."""

_HANGING_TEXTS: Mapping[HangingCall, str] = {
    "store": "has a store that does not answer",
    "stop": "does not come to a decision whether to stop",
    "loop": "is blocked by a handler",
}

_PAIRS_LISTED = 6
"""Maximum number of pairs that a fault's description lists. Further pairs are only counted."""


def schedule(scenario: Scenario, executor: Executor) -> int:
    """Schedule all faults on the executor's clock. Return the time in nanoseconds at which the last fault ends.

    A fault that waits at a failpoint may happen at any time until `run.until`. The caller must call `heal` at the returned time or
    later.
    """
    plan = Schedule(scenario, executor)
    return max([plan.add(index, fault.word) for index, fault in enumerate(scenario.fault)], default=0)


def heal(executor: Executor) -> None:
    """Restore the network, disks, clocks, hosts and coordinators. Bytes in files that a fault has damaged are not repaired."""
    executor.disarm_failpoints()
    executor.reset_network()
    executor.clear_disks()
    executor.set_unknown(0)
    for node in executor.coordinators:
        executor.start_coordinator(node)
    for host in executor.hosts:
        executor.set_clock(host, 0, 0)
        executor.set_speed(host, 100)
        for what in _HANGING_TEXTS:
            executor.set_hanging(host, what, False)
        executor.resume_host(host)
        executor.start_host(host)


class Schedule:
    """Schedules and begins the faults of one run.

    Attributes:
        _joiners: for the index of each "join" fault in the scenario, the name of the joining host.
        _initial: hosts that exist at the start of the run. If the scenario does not name a fault's target, one of these hosts is chosen at
            random.
    """

    def __init__(self, scenario: Scenario, executor: Executor) -> None:
        self._scenario = scenario
        self._executor = executor
        self._joiners = dict(_joiners(scenario))
        self._initial = executor.hosts[: scenario.fleet.hosts]
        self._conditions = Conditions(executor, scenario.network, absent_hosts=joining_hosts(scenario))

    def add(self, index: int, word: FaultKind) -> int:
        """Schedule the fault with this index in the scenario. Return the time at which the fault ends, in nanoseconds."""
        self._executor.at(word.at_ns, partial(self._begin, index, word))
        return self._scenario.run.until_ns if word.point else word.ends_ns(len(self._executor.hosts))

    def _begin(self, index: int, word: FaultKind) -> None:
        if word.point:
            self._arm(index, word)
            return
        match word:
            case DelayFault() | LossFault() | HoldFault() | ClogFault():
                self._begin_on_pairs(index, word)
            case PartitionFault():
                self._begin_partition(index, word)
            case SwizzleFault():
                self._begin_swizzle(index, word)
            case ResetFault():
                for time in range(word.times):
                    self._after(time * duration_ns(word.every), partial(self._reset, index, word, time))
            case SlowFault() | PauseFault() | HangFault() | ClockFault():
                self._begin_on_hosts(index, word)
            case CrashFault():
                self._begin_crash(index, word)
            case DiskFault():
                self._begin_disk(index, word)
            case CoordinatorFault():
                self._begin_coordinator(index, word)
            case MembershipFault():
                self._begin_membership(index, word)
            case _:
                raise AssertionError(f"no word {word}")

    def _arm(self, index: int, word: FaultKind) -> None:
        """Arm a failpoint. The node whose execution reaches the failpoint is killed or paused, loses its streams, or gets an error."""
        action: FailpointAction
        match word:
            case CrashFault():
                action = "power-cut" if word.is_power_cut else "crash"
                for_ns, hit = word.restart_after_ns or 0, word.hit
            case ResetFault():
                action, for_ns, hit = "reset", 0, word.hit
            case CaptureFault():
                self._note(index, f"an agent's state cannot be encoded, {word.times} times from image {word.hit} on")
                for time in range(word.times):
                    self._executor.arm_failpoint(word.point, word.hit + time, "refuse", 0)
                return
            case PauseFault():
                action, for_ns, hit = "pause", word.lasts_ns, word.hit
            case DiskFault():
                action, for_ns, hit = "error", 0, word.hit
            case _:
                raise AssertionError(f"{word} does not wait at a failpoint")
        self._note(index, f"{action} {ARMED} {word.point}, at pass {hit}")
        self._executor.arm_failpoint(word.point, hit, action, for_ns)

    # The network.

    def _begin_on_pairs(self, index: int, word: DelayFault | LossFault | HoldFault | ClogFault) -> None:
        part: Part = ()
        match word:
            case DelayFault():
                name, text, part = "delay", "takes longer", (duration_ns(word.least), duration_ns(word.jitter))
                pairs = self._named_or_all(word)
            case LossFault():
                name, text, part = "loss", f"loses {word.per_mille} of 1000 packets", (word.per_mille,)
                pairs = self._named_or_all(word)
            case HoldFault():
                name, text = "hold", "holds markers"
                pairs = _both_ways(self._named_or_drawn(index, word.between, self._executor.hosts))
            case ClogFault():
                name, text = "block", "lets nothing pass"
                pairs = self._named_or_drawn(index, word.between, self._nodes())
        until_ns = self._conditions.worsen_for(word.lasts_ns, [(name, *pair) for pair in pairs], part)
        self._note(index, f"{_listed_pairs(pairs)} {text}", until_ns)

    def _begin_partition(self, index: int, word: PartitionFault) -> None:
        pairs = self._pairs_of_partition(index, word)
        if word.direction == "one-way":
            pairs = one_way(pairs, self._executor.choices.pick("fault", (index, "way"), 2))
        until_ns = self._conditions.worsen_for(word.lasts_ns, [("block", *pair) for pair in pairs])
        self._note(index, f"{word.shape}: {_listed_pairs(pairs)} lets nothing pass", until_ns)

    def _pairs_of_partition(self, index: int, word: PartitionFault) -> list[Pair]:
        nodes = self._nodes()
        match word.shape:
            case "isolate-leader":
                return pairs_cut_off([self._leader(index)], nodes)
            case "isolate-host":
                return pairs_cut_off(self._named_hosts(index, word.host), nodes)
            case "isolate-agent":
                agents = self._executor.agents
                agent = word.agent or (self._draw(index, "agent", agents) if agents else "")
                return pairs_cut_off([self._executor.host_of(agent) or self._draw(index, "host", self._initial)], nodes)
            case shape:
                return pairs_of_shape(shape, shuffled(nodes, self._executor.choices, index, "order"))

    def _begin_swizzle(self, index: int, word: SwizzleFault) -> None:
        """Disconnect nodes one after another during the first half of the fault. Reconnect the nodes in a different order during the second
        half."""
        nodes, choices, half_ns = self._nodes(), self._executor.choices, word.lasts_ns // 2
        count = 1 + choices.pick("fault", (index, "count"), max(1, len(nodes) - 1))
        clogged = shuffled(nodes, choices, index, "order")[:count]
        ends = shuffled(clogged[::-1], choices, index, "back")
        for place, node in enumerate(clogged):
            begin_ns = place * half_ns // count
            end_ns = half_ns + (ends.index(node) + 1) * half_ns // count
            self._after(begin_ns, partial(self._clog, node, end_ns - begin_ns))
        self._note(index, f"cuts off {', '.join(clogged)}; back come {', '.join(ends)}", self._after_ns(word.lasts_ns))

    def _clog(self, node: str, lasts_ns: int) -> None:
        pairs = pairs_cut_off([node], self._nodes())
        self._conditions.worsen_for(lasts_ns, [("block", *pair) for pair in pairs])

    def _reset(self, index: int, word: ResetFault, time: int) -> None:
        for one, other in self._named_or_drawn(index, word.between, self._nodes(), time):
            self._note(index, f"{one} and {other} lose their stream")
            self._executor.reset_stream(one, other)

    # Hosts.

    def _begin_on_hosts(self, index: int, word: SlowFault | PauseFault | HangFault | ClockFault) -> None:
        hosts = self._named_hosts(index, word.host)
        part: Part = ()
        kind: Condition = ()
        match word:
            case SlowFault():
                name, text, part = "slow", f"runs at {word.percent} % of its speed", (word.percent,)
            case PauseFault():
                name, text = "pause", "stands still"
            case HangFault():
                name, kind, text = "hang", (word.what,), _HANGING_TEXTS[word.what]
            case ClockFault():
                name, part = "clock", (word.skew_ns, word.drift_ppm)
                text = f"has a clock that is {word.skew} ahead and drifts by {word.drift_ppm} ppm"
        until_ns = self._conditions.worsen_for(word.lasts_ns, [(name, host, *kind) for host in hosts], part)
        self._note(index, f"{', '.join(hosts)} {text}", until_ns)

    def _begin_crash(self, index: int, word: CrashFault) -> None:
        if word.is_rolling:
            step_ns = (word.restart_after_ns or 0) + ROLLING_PAUSE_NS
            for place, host in enumerate(self._executor.hosts):
                self._after(place * step_ns, partial(self._crash, index, word, host))
            return
        for host in self._named_hosts(index, EVERY_HOST if word.is_of_all else word.host):
            self._crash(index, word, host)

    def _crash(self, index: int, word: CrashFault, host: str) -> None:
        until_ns = self._conditions.take_down(word.restart_after_ns, ("down", host), self._executor.crash_host)
        self._note(index, f"{host} is killed", until_ns)

    def _begin_membership(self, index: int, word: MembershipFault) -> None:
        if word.kind == "leave":
            for host in self._named_hosts(index, word.host):
                self._leave(index, host, word.back_after_ns)
            return
        host = self._joiners[index]
        self._conditions.relieve(("down", host))
        self._note(index, f"{host} joins")
        if word.back_after_ns is not None:
            self._after(word.back_after_ns, partial(self._leave, index, host, None))

    def _leave(self, index: int, host: str, back_after_ns: int | None) -> None:
        until_ns = self._conditions.take_down(back_after_ns, ("down", host), self._executor.leave_host)
        self._note(index, f"{host} leaves", until_ns)

    # Disks.

    def _begin_disk(self, index: int, word: DiskFault) -> None:
        if word.mode == "bit-flip":
            self._flip(index, word, FLIP_TRIES)
        elif word.is_cut:
            for host in self._named_hosts(index, word.host):
                until_ns = self._conditions.take_down(word.restart_after_ns, ("down", host), self._executor.power_cut)
                self._note(index, f"{host} loses power", until_ns)
        else:
            node = word.host or self._draw(index, "host", self._initial + self._executor.coordinators)
            condition = ("disk", word.mode, "" if node == EVERY_HOST else node)
            until_ns = self._conditions.worsen_for(word.lasts_ns, [condition])
            self._note(index, f"{'everybody' if node == EVERY_HOST else node} has a disk with {word.mode}", until_ns)

    def _flip(self, index: int, word: DiskFault, tries: int) -> None:
        damaged = self._executor.flip_bit(self._executor.choices.pick("fault", (index, "bit"), _BIT_PICKS))
        if damaged:
            self._note(index, f"a bit flips: {damaged}")
        elif tries:
            self._after(word.lasts_ns // FLIP_TRIES, partial(self._flip, index, word, tries - 1))
        else:
            self._note(index, "no bit flips: there was never an older epoch to fall back to")

    # The coordinator.

    def _begin_coordinator(self, index: int, word: CoordinatorFault) -> None:
        match word.kind:
            case "depose":
                self._note(index, f"{self._executor.leader() or 'nobody'} is deposed")
                self._executor.depose()
            case "unknown-outcome":
                until_ns = self._conditions.worsen_for(word.lasts_ns, [("unknown",)], (word.per_mille,))
                self._note(index, f"{word.per_mille} of 1000 outcomes are lost", until_ns)
            case "kill-leader":
                self._kill(index, word, [self._leader(index)])
            case "kill":
                self._kill(index, word, [word.node or self._draw(index, "node", self._executor.coordinators)])
            case "lose-quorum":
                nodes = self._executor.coordinators
                order = shuffled(nodes, self._executor.choices, index, "order")
                self._kill(index, word, order[: len(nodes) // 2 + 1])

    def _kill(self, index: int, word: CoordinatorFault, nodes: Sequence[str]) -> None:
        crash_node = self._executor.crash_coordinator
        ends_ns = [self._conditions.take_down(word.lasts_ns, ("coordinator-down", node), crash_node) for node in nodes]
        self._note(index, f"{', '.join(nodes)}: killed, {word.kind}", max(ends_ns))

    # Targets and times.

    def _draw(self, index: int, what: str, nodes: Sequence[str]) -> str:
        return nodes[self._executor.choices.pick("fault", (index, what), len(nodes))]

    def _named_hosts(self, index: int, host: str) -> tuple[str, ...]:
        if host == EVERY_HOST:
            return self._executor.hosts
        return (host or self._draw(index, "host", self._initial),)

    def _leader(self, index: int) -> str:
        return self._executor.leader() or self._draw(index, "node", self._executor.coordinators)

    def _nodes(self) -> tuple[str, ...]:
        """Return all nodes that may exist during the run."""
        return self._executor.hosts + self._executor.coordinators

    def _named_or_all(self, word: PathFault) -> list[Pair]:
        if word.direction == "one-way":
            return [(word.between[0], word.between[1])]
        return all_pairs(word.between or self._nodes())

    def _named_or_drawn(self, index: int, between: Sequence[str], nodes: Sequence[str], time: int = 0) -> list[Pair]:
        """Return a list that contains the pair named in the scenario, or a random pair if the scenario names none. The list is empty if a
        random pair is needed and there is only one node."""
        if between:
            return [(between[0], between[1])]
        pairs = all_pairs(nodes)
        return [pairs[self._executor.choices.pick("fault", (index, "pair", time), len(pairs))]] if pairs else []

    def _after_ns(self, after_ns: int) -> int:
        return self._executor.now_ns + after_ns

    def _after(self, after_ns: int, call: partial[None]) -> None:
        if after_ns:
            self._executor.at(self._after_ns(after_ns), call)
        else:
            call()

    def _note(self, index: int, text: str, until_ns: int = 0) -> None:
        kind = self._scenario.fault[index].kind
        self._executor.note_fault(ExecutedFault(kind, text, self._executor.now_ns, until_ns))


def _both_ways(pairs: Sequence[Pair]) -> list[Pair]:
    return [*pairs, *((receiver, sender) for sender, receiver in pairs)]


def _listed_pairs(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return "nothing (too few nodes)"
    listed = [f"{sender}→{receiver}" for sender, receiver in pairs[:_PAIRS_LISTED]]
    more = len(pairs) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")


def _joiners(scenario: Scenario) -> Iterator[tuple[int, str]]:
    """Yield the index of each "join" fault with the name of the joining host. Joining hosts that the scenario does not name get the unused
    host names, in order."""
    members = [(index, fault.membership) for index, fault in enumerate(scenario.fault) if fault.membership]
    joins = [(index, word.host) for index, word in members if word.kind == "join"]
    named = [host for _, host in joins if host]
    unnamed = iter([host for host in joining_hosts(scenario) if host not in named])
    for index, host in joins:
        yield index, host or next(unnamed)


def check_budget(scenario: Scenario) -> None:
    """Check that the faults do not exceed the fault budget that the guarantees assume. Skip the check if the scenario's budget is "beyond".

    Each target that the scenario does not name counts as a separate node.

    Raises:
        UsageError: If the faults exceed the budget. The error message explains what to change.
    """
    for problem in budget_problems(scenario) if scenario.budget == "within" else ():
        raise UsageError(f'{scenario.name}: {problem}, or say budget = "beyond"')


def budget_problems(scenario: Scenario) -> Iterator[str]:
    """Yield a description of each fault or combination of faults that no fleet can survive."""
    fleet = scenario.fleet
    words = [fault.word for fault in scenario.fault]
    hosts = _count_lost([lost for word in words for lost in _hosts_lost(word, fleet.hosts)])
    if hosts >= fleet.hosts:
        yield f"{hosts} of {fleet.hosts} hosts are lost for ever: within the budget one must stay; set restart_after"
    nodes = _count_lost([lost for word in words for lost in _coordinators_lost(word, fleet.coordinators)])
    if nodes > (fleet.coordinators - 1) // 2:
        yield (
            f"{nodes} of {fleet.coordinators} coordinators are lost for ever: "
            "within the budget a majority must come back; set for"
        )
    if scenario.run.keep_epochs < 2 and any(isinstance(word, DiskFault) and word.mode == "bit-flip" for word in words):
        yield "a bit flips in the only epoch that is kept: set run.keep_epochs to 2 or more"
    if any(isinstance(word, DiskFault) and word.mode == "stale-read" for word in words):
        yield "a store must show what was written to it: stale reads are beyond the budget; set budget to beyond"


def _count_lost(lost: Sequence[str]) -> int:
    """Return the number of lost nodes. Each distinct name counts once, and each empty name counts as a further node."""
    return len({name for name in lost if name}) + sum(not name for name in lost)


def _hosts_lost(word: FaultKind, hosts: int) -> list[str]:
    """Return the initial hosts that this fault takes down and that do not restart before `heal`. An empty name represents an arbitrary
    host."""
    match word:
        case CrashFault(restart_after="") if word.is_of_all:
            return [""] * hosts
        case CrashFault(restart_after="") | MembershipFault(kind="leave", back_after=""):
            return [word.host]
        case DiskFault(restart_after="") if word.is_cut:
            return [""] * hosts if word.host == EVERY_HOST else [word.host]
        case _:
            return []


def _coordinators_lost(word: FaultKind, coordinators: int) -> list[str]:
    """Return the coordinators that this fault takes down and that do not restart before `heal`. An empty name represents an arbitrary
    coordinator, because any coordinator may reach a failpoint."""
    match word:
        case CrashFault(restart_after="") if word.point:
            return [""]
        case CoordinatorFault(lasts="", kind="kill" | "kill-leader"):
            return [word.node]
        case CoordinatorFault(lasts="", kind="lose-quorum"):
            return [""] * coordinators
        case _:
            return []


def describe_faults() -> list[tuple[str, str, str]]:
    """Return the class, the kind and variant, and the description of every fault, for display."""
    return list(DESCRIPTIONS)


DESCRIPTIONS = (
    ("network", "delay", "packets take longer, between two nodes, from one to the other, or everywhere"),
    ("network", "loss", "packets are lost and sent again by TCP: a delay, and at last a reset"),
    (
        "network",
        "reset",
        "a stream breaks, and what is in flight is lost, so many times; or in a moment, all of a node",
    ),
    ("network", "hold", "markers wait, everything else passes"),
    ("network", "clog", "nothing passes from one node to another; the other way is open"),
    ("network", "swizzle", "some nodes are cut off one after the other, and come back in another order"),
    ("network", "partition: one", "one node, host or coordinator, is cut off"),
    (
        "network",
        "partition: pair",
        "two nodes, hosts or coordinators, are cut from each other, and both see all others",
    ),
    ("network", "partition: majority", "a minority of the nodes is cut off"),
    ("network", "partition: minority-third", "a third of the nodes is cut off"),
    ("network", "partition: majorities-ring", "each node sees a majority, no two the same"),
    ("network", "partition: bridge", "two halves see one node, and not each other"),
    ("network", "partition: isolate-leader", "the coordinator's leader is cut off"),
    ("network", "partition: isolate-host", "a host is cut off"),
    ("network", "partition: isolate-agent", "the host where an agent lives is cut off"),
    ("host", "slow", "the processor runs at a part of its speed"),
    ("host", "crash", "killed: at a time, at a failpoint, in a moment such as recording; all at once, or rolling"),
    ("host", "capture", "an agent's state cannot be encoded, so many times"),
    ("host", "pause", "stands still, and goes on as if nothing had happened"),
    ("host", "hang: store", "calls of the store do not come back: a plan is not applied, an epoch not stored"),
    ("host", "hang: stop", "stop_when does not come back"),
    (
        "host",
        "hang: loop",
        "a handler blocks: nothing else runs there, but its process answers pings, and reports that it is busy",
    ),
    ("disk", "disk: power-cut", "killed, and what was not synced is kept, lost or torn"),
    ("disk", "disk: torn", "the same as power-cut: a file that was not synced may keep a part"),
    ("disk", "disk: bit-flip", "a file of the newest complete epoch is damaged, once there is an older one"),
    ("disk", "disk: eio", "reads and writes fail, for a time or at a failpoint"),
    ("disk", "disk: failed-sync", "syncs fail, and what was written is not kept"),
    ("disk", "disk: full", "writes fail: no space"),
    ("disk", "disk: slow", "everything on the disk takes long"),
    ("disk", "disk: stale-read", "what others wrote in the last moment is not seen yet"),
    ("disk", "disk: away", "the store's mount is gone: an empty directory is there"),
    ("clock", "clock", "the wall clock is ahead or behind, and drifts"),
    ("coordinator", "coordinator: kill-leader", "the leader is killed"),
    ("coordinator", "coordinator: kill", "a coordinator is killed"),
    ("coordinator", "coordinator: lose-quorum", "so many are killed that no majority is left"),
    ("coordinator", "coordinator: depose", "the leader loses its office without noticing at once"),
    ("coordinator", "coordinator: unknown-outcome", "proposals succeed or fail, and the proposer is not told"),
    ("membership", "membership: leave", "a host says goodbye and ends"),
    ("membership", "membership: join", "a new host comes"),
)
"""Class, kind and description of every fault. Each shape, mode or variant has its own entry."""
