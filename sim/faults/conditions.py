"""Conditions of nodes and links, and the faults that cause them.

Faults overlap: two partitions may cut one pair, or two crashes hit one host. So a fault never ends a condition. It ends *its
part* of the condition, which holds while any part is left. For a condition with a value, the worst part counts: the lowest
speed, the highest loss, the sum of all skews, the latest delay.

Invariant: the executor's state follows from the parts, except for its own actions, such as restarts of nodes killed at a
failpoint.
"""

from collections.abc import Callable, Iterable

from snapline.sim.faults.executor import DiskMode, Executor, HangingCall
from snapline.sim.scenario import NetworkPart

Condition = tuple[str, ...]
"""A condition and its nodes, such as ("block", "h1", "c1")."""

Part = tuple[int, ...]
"""Contribution of one fault to a condition: numbers, or () for a condition without a value."""

_DISK_MODES: dict[str, DiskMode] = {
    "eio": "eio",
    "full": "full",
    "failed-sync": "failed-sync",
    "slow": "slow",
    "stale-read": "stale-read",
    "away": "away",
}

_HANGING: dict[str, HangingCall] = {"store": "store", "stop": "stop", "loop": "loop"}


class Conditions:
    """Conditions caused by all active faults.

    Attributes:
        _parts: condition → parts of its faults; a condition without parts is absent.
    """

    def __init__(self, executor: Executor, network: NetworkPart, *, absent_hosts: Iterable[str]) -> None:
        """`absent_hosts` join later, and count as down until `relieve`: no restart starts them earlier."""
        self._executor = executor
        self._network = network
        self._parts: dict[Condition, list[Part]] = {("down", host): [()] for host in absent_hosts}

    def worsen(self, condition: Condition, part: Part = ()) -> None:
        parts = self._parts.setdefault(condition, [])
        parts.append(part)
        if part or len(parts) == 1:
            self._settle(condition)

    def relieve(self, condition: Condition, part: Part = ()) -> None:
        """End one part; the executor is called if that changes the condition."""
        parts = self._parts[condition]
        parts.remove(part)
        if not parts:
            del self._parts[condition]
        if part or not parts:
            self._settle(condition)

    def worsen_for(self, lasts_ns: int | None, conditions: Iterable[Condition], part: Part = ()) -> int:
        """Add a part for `lasts_ns` (None: no end), and return the time of its end; 0 without one."""
        listed = list(conditions)
        for condition in listed:
            self.worsen(condition, part)
        return self._end_after(lasts_ns, listed, part)

    def take_down(self, down_ns: int | None, condition: Condition, how: Callable[[str], None]) -> int:
        """Act as `worsen_for` for a node: nodes go down in several ways (`how`), and return in one."""
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
        """Apply the condition's parts to the executor."""
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
                executor.set_hanging(host, _HANGING[what], bool(parts))
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
        """Set a disk mode. When a part ends, nodes with another part for them or for all nodes ("") keep the mode."""
        self._executor.set_disk(node, mode, is_on)
        for other in self._parts if not is_on else ():
            if other[:2] == ("disk", mode):
                self._executor.set_disk(other[2], mode, True)
