"""Random faults and clients for the world of `sim.py`, and what must hold whatever happens (G8).

Checked while it runs: one leader per term, every position applied alike by all, an acknowledged write lies behind all that
was acknowledged before it was proposed, and a barrier sees all that was acknowledged before it. Checked at the end, after the
faults stop: a write gets through, all replicas become equal, every acknowledged write is there, once, and none that was
rejected; then all processes are killed and start again, and the same holds.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pysyncobj.config import FAIL_REASON  # type: ignore[import-untyped]  # the library has no types
from tests.coordinator.raft.sim import SUCCESS, Replica, SafeReplica, World

REJECTED = {
    *(FAIL_REASON.QUEUE_FULL, FAIL_REASON.MISSING_LEADER, FAIL_REASON.NOT_LEADER, FAIL_REASON.REQUEST_DENIED),
    FAIL_REASON.DISCARDED,
}

CONVERGED_S = 40.0
"""Virtual time in which a cluster without faults must agree."""


@dataclass(frozen=True)
class Plan:
    """What one run is like."""

    replicas: int = 3
    compaction_entries: int = 10**9
    batch_bytes: int = 4000
    seconds: float = 25.0
    write_bytes_max: int = 700
    duplicates: float = 0.0
    losses: float = 0.0
    """Of a fault: how likely the next crash of who is hit takes its disk, where a majority of the logs is left."""


@dataclass(frozen=True)
class Report:
    """What came out."""

    bad: list[str]
    acks: int
    outcomes: Counter[int]
    crashes: int
    barriers: int
    dumps: int
    losses: int
    trace: str


class Fuzz:
    """One seed of one plan."""

    def __init__(self, seed: int, plan: Plan, kind: type[Replica] = SafeReplica) -> None:
        self.plan = plan
        settings: dict[str, Any] = {"compaction_entries": plan.compaction_entries, "batch_bytes": plan.batch_bytes}
        self.world = World(seed, replicas=plan.replicas, kind=kind, **settings)
        self.world.duplicates = plan.duplicates
        self.random = self.world.random
        self.names = list(self.world.replicas)
        self.number = 0
        self.outcomes: Counter[int] = Counter()
        self.acked: set[bytes] = set()
        self.rejected: set[bytes] = set()
        self.acked_until = 0
        """Positions below this were acknowledged, or precede one that was."""
        self.barriers = 0
        self.crashes = 0
        self.losses = 0
        self.doomed: set[str] = set()
        """Replicas whose next crash takes the disk."""
        self.emptied: set[str] = set()
        """Replicas without a disk that have not started since."""

    # ---- clients ----------------------------------------------------------------------------------------------------

    def write(self, replica: Replica) -> None:
        """Propose a fresh entry; whatever comes back is checked."""
        self.number += 1
        entry = b"%d" % self.number
        entry += b"." * self.random.randrange(self.plan.write_bytes_max)
        floor = self.acked_until

        def heard(position: Any, code: int) -> None:
            self.outcomes[code] += 1
            if code in REJECTED:
                self.rejected.add(entry)
            if code == SUCCESS:
                self.acked.add(entry)
                if not floor <= position < len(self.world.applied) or self.world.applied[position] != entry:
                    self.world.bad.append(f"write {entry[:9]!r} was acknowledged at {position}, after {floor}")
                self.acked_until = max(self.acked_until, position + 1)

        self.world.guard(replica, lambda: replica.propose(entry, heard))

    def read(self, replica: Replica) -> None:
        """A barrier read."""
        floor = self.acked_until

        def heard(_: object, code: int) -> None:
            if code == SUCCESS:
                self.barriers += 1
                if len(replica.entries) < floor:
                    self.world.bad.append(
                        f"{replica.name} read {len(replica.entries)} writes, {floor} were acknowledged"
                    )

        self.world.guard(replica, lambda: replica.node.barrier(heard))

    def clients(self) -> None:
        """What the clients do in one step."""
        alive = [replica for replica in self.world.replicas.values() if replica.node is not None]
        count = 60 if self.random.random() < 0.004 else int(self.random.random() < 0.4)
        replica = self.random.choice(alive) if alive else None
        for _ in range(count):
            if replica is not None and replica.node is not None:
                self.write(replica)
        if replica is not None and self.random.random() < 0.1 and hasattr(replica.node, "barrier"):
            self.read(replica)

    # ---- faults -----------------------------------------------------------------------------------------------------

    def crash(self, replica: Replica) -> None:
        self.crashes += 1
        replica.restart_at = self.world.clock.now + self.random.choice((0.02, 0.3, self.random.uniform(0, 3)))
        replica.crash()

    def lose_disks(self) -> None:
        """Crashes take disks; never more than a minority is without its log at a time, or nothing could be demanded."""
        down = {replica.name for replica in self.all() if replica.node is None}
        self.emptied &= down
        for name in sorted(self.doomed & down):
            self.doomed.discard(name)
            lost = {*self.world.marks.lost(), *self.emptied, name}
            if 2 * len(lost) < len(self.names):
                self.losses += 1
                self.emptied.add(name)
                self.world.note("lost", name)
                self.world.replicas[name].empty()

    def crash_all(self) -> None:
        for replica in self.world.replicas.values():
            self.crash(replica)

    def strike(self) -> None:
        """One fault."""
        world, chance = self.world, self.random
        victim = world.replicas[chance.choice(self.names)]
        if chance.random() < 0.5 and world.leader is not None:
            victim = world.leader
        if self.plan.losses and chance.random() < self.plan.losses:
            self.doomed.add(victim.name)
        other = chance.choice(self.names)
        match chance.randrange(12):
            case 0:
                self.crash(victim)
            case 1 if chance.random() < 0.3:
                self.crash_all()
            case 2 | 3:
                if victim.node is not None:
                    victim.fuse = chance.randrange(1, 60)
                    self.crashes += 1
                    victim.restart_at = world.clock.now + chance.uniform(0.1, 2)
            case 4 | 5 if other != victim.name:
                world.cut(victim.name, other)
            case 6:
                for name in self.names:
                    if name != victim.name:
                        world.cut(victim.name, name)
            case 7 | 8:
                world.cuts.clear()
            case 9 if other != victim.name:
                world.delays[victim.name, other] = chance.choice((0.0, 0.1, 1.0, 3.0, 8.0))
            case 10:
                victim.paused_until = world.clock.now + chance.uniform(0.1, 3)
            case _:
                if victim.node is not None:
                    world.guard(victim, victim.node.transferLeadership)
                    if chance.random() < 0.3:
                        victim.node.forceLogCompaction()

    # ---- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Faults, quiet, checks."""
        world = self.world
        with world:
            end, next_strike = world.clock.now + self.plan.seconds, world.clock.now + 1.0
            while world.clock.now < end and len(world.bad) < 5:
                world.step()
                self.lose_disks()
                self.clients()
                if world.clock.now >= next_strike:
                    self.strike()
                    self.lose_disks()
                    next_strike = world.clock.now + self.random.expovariate(1.0)
            self.settle("after the faults")
            self.check()
            for replica in world.replicas.values():
                replica.crash()
            self.settle("after the last restart")
            self.check()
            dumps = sum(1 for replica in world.replicas.values() if (replica.folder / "raft.dump").exists())
        trace = world.trace.hexdigest()
        losses = self.losses
        return Report(world.bad, len(self.acked), self.outcomes, self.crashes, self.barriers, dumps, losses, trace)

    def settle(self, when: str) -> None:
        """Faults end; the replicas must agree, and take a write."""
        world = self.world
        world.cuts.clear()
        world.delays.clear()
        for replica in world.replicas.values():
            replica.fuse, replica.paused_until, replica.restart_at = None, 0.0, 0.0
        if world.bad:
            return
        before = len(self.acked)
        next_write = 0.0

        def is_settled() -> bool:
            nonlocal next_write
            if world.leader is not None and world.clock.now >= next_write and len(self.acked) == before:
                next_write = world.clock.now + 1
                self.write(world.leader)
            return len(self.acked) > before and self.are_equal()

        if not world.run(CONVERGED_S, is_settled):
            status = [(r.name, r.node and (r.is_leader, r.term, len(r.entries), r.log()[-1][1:])) for r in self.all()]
            world.bad.append(f"no agreement {when}: {status}")

    def all(self) -> list[Replica]:
        return list(self.world.replicas.values())

    def are_equal(self) -> bool:
        nodes = [replica.node for replica in self.all()]
        if None in nodes or any(replica.is_learner for replica in self.all()):
            return False
        facts = {(node.raftLastApplied, node.raftCommitIndex, node._SyncObj__raftLog[-1]) for node in nodes}
        # All may hold the same entries before the leader has heard of it: not settled yet.
        return len(facts) == 1 and all(applied == last[1] for applied, _, last in facts)

    def check(self) -> None:
        """What the replicas hold against what the clients heard."""
        if self.world.bad:
            return
        for replica in self.all():
            counts = Counter(replica.entries)
            lost = [entry for entry in self.acked if entry not in counts]
            undead = [entry for entry in self.rejected if entry in counts]
            twice = [entry for entry, count in counts.items() if count > 1]
            for what, entries in (("lost", lost), ("applied though rejected", undead), ("applied twice", twice)):
                if entries:
                    self.world.bad.append(f"{replica.name}: {len(entries)} {what}, such as {entries[0][:9]!r}")
            if replica.entries != self.all()[0].entries:
                self.world.bad.append(f"{replica.name} differs from {self.names[0]}")


def fuzz(seed: int, plan: Plan, kind: type[Replica] = SafeReplica) -> Report:
    """Run one seed."""
    return Fuzz(seed, plan, kind).run()
