"""Read-only queries on the replicated state. Only `fleet_state.py` and its helpers, such as `make_void`, change the state.

Queries may be called at any time on the event loop's thread. Results are in the order of the image, which is the same on every replica.

The *lineage* of an epoch is the chain of its predecessors. A *restore* returns the fleet to an earlier epoch.

The *predecessor* of an epoch is the newest older epoch that completed under the same plan. If the plan has no older epoch, the predecessor
is the plan's recovery line, where 0 denotes the initial states. With local recovery, all plans of an era count as one plan, because they
undo nothing that an epoch contains. The predecessor may have been condemned since, because a plan continues
even if one of its epochs is found to be damaged.

A *void* epoch is a complete epoch that was discarded when the fleet was restored to an earlier epoch. A void epoch never becomes a recovery
line again, because the next failure would then undo the restore. No valid epoch follows a void epoch, because a restore makes all later
complete epochs void too.

Void epochs are forgotten in any order, and all other epochs oldest first. `FleetImage.forgotten` is the highest number of a forgotten epoch
that was not void. A predecessor at or below this number is reliable only if no epoch of its plan has been forgotten.
"""

from collections.abc import Iterable, Iterator

import msgspec

from snapline.coordinator.state.fleet_records import (
    AGENTS_MAX,
    ALIVE,
    CLIENTS_MAX,
    COMPLETE,
    CONDEMNED,
    EPOCHS_OPEN_MAX,
    FAILED,
    FINISHED,
    FORMING,
    OPEN,
    PLANNED_STOP,
    RECOVERING,
    RECOVERY_TRIGGER,
    RUNNING,
    VOID,
    AgentRecord,
    FleetImage,
    OutcomeRecord,
    PlanRecord,
)
from snapline.messages.host_messages import COMMIT_AGE_NS
from snapline.protocols.names import LOCAL, is_autonomous, is_logged


class FleetView:
    """A read-only view of the replicated state."""

    def __init__(self) -> None:
        self.image = FleetImage()

    @property
    def phase(self) -> str:
        """Return the phase of the fleet: "forming", "recovering", "running", "finished" or "failed"."""
        image = self.image
        if image.outcome:
            return FAILED if image.outcome == "failed" else FINISHED
        if self.plan is None:
            return FORMING
        return RUNNING if image.need is None and self.plan.done_ns else RECOVERING

    @property
    def plan(self) -> PlanRecord | None:
        """Return the current plan, or None before the first plan."""
        return self.image.plans[-1] if self.image.plans else None

    @property
    def plan_number(self) -> int:
        """Return the number of the current plan. Before the first plan, return 0 or, in a fork, the plan number of the snapshot."""
        return self.image.plans[-1].number if self.image.plans else self.start_plan - 1

    @property
    def start_plan(self) -> int:
        """Return the number of the fleet's first plan. Restoring the fleet from a backup does not change this number. Later plans are
        recoveries."""
        return 1 if self.image.fork is None else self.image.fork.plan + 1

    @property
    def is_fork_without_epoch(self) -> bool:
        """Return whether this fleet is a fork without a usable epoch. A fork has no initial states, so this fleet cannot start."""
        return self.image.fork is not None and not self.newest_complete()

    def plan_of_request(self, request: str) -> PlanRecord | None:
        """Return the plan created by this restore request, or None if no known plan was created by it."""
        plans = self.image.plans
        return next((x for x in plans if x.restore is not None and request and x.restore.request == request), None)

    def refusal_of_rollback(self, agent: str, reason: str, at_most: int) -> str:
        """Return why a rollback requested by this agent is refused, or "" if it is allowed.

        More than `at_most` rollbacks for the same reason are refused, not counting those before an operator restored the fleet. An
        operator's restore has an empty `agent`, and is never refused.
        """
        count = 0
        for plan in reversed(self.image.plans) if agent else ():
            if plan.restore is not None and not plan.restore.agent:
                break
            count += plan.restore is not None and (plan.restore.agent, plan.reason) == (agent, reason)
        if not count or count < at_most:
            return ""
        times = "before" if count == 1 else f"{count} times"
        return f"it has gone back {times}, for the same reason at the same place"

    @property
    def is_logged(self) -> bool:
        """Return whether agents store checkpoints independently, and epochs are assembled from these checkpoints."""
        return is_logged(self.image.protocol)

    @property
    def is_autonomous(self) -> bool:
        """Return whether agents checkpoint independently, so that recovery lines must be computed."""
        return is_autonomous(self.image.protocol)

    @property
    def is_defined(self) -> bool:
        """Return whether the fleet and all its initial agents have been defined."""
        image = self.image
        if image.plans or image.fork is not None:  # The agents of a fork are those of its snapshot.
            return image.agents_defined > 0
        return 0 < len(image.agents) == image.agents_defined

    def may_forget(self, host: str) -> bool:
        """Return whether the record of `host` is no longer needed: the host is lost or has left, and no agent is placed on it."""
        record, plan = self.image.hosts.get(host), self.plan
        return record is not None and record.state != ALIVE and (plan is None or host not in plan.hosts)

    def newest_complete(self) -> int:
        """Return the recovery line of the next plan: the newest epoch that is complete and neither condemned nor void, or 0 if there is
        none."""
        for epoch in reversed(self.image.epochs):
            if self.image.epochs[epoch].status == COMPLETE:
                return epoch
        return 0

    def at_risk_ns(self, now_ns: int) -> int | None:
        """Return how many nanoseconds of work a failure of all hosts at wall-clock time `now_ns` would undo. Return None if the fleet is
        not running.

        If agents checkpoint independently, the result is an upper bound. With local recovery, it is the age at which hosts commit changes.
        """
        if self.phase != RUNNING:
            return None
        return COMMIT_AGE_NS if self.image.recovery == LOCAL else self.work_since_line_ns(now_ns)

    def work_since_line_ns(self, now_ns: int) -> int:
        """Return the time from the start of the newest complete epoch to `now_ns`.

        If the last recovery restored that epoch, count from the end of the recovery instead, because earlier work was undone.
        """
        plan, newest = self.plan, self.newest_complete()
        if plan is None:
            return 0
        record, is_same = self.image.epochs.get(newest), plan.line_epoch == newest
        began_ns = self.image.plans[0].committed_ns if record is None else record.begun_ns
        return max(0, now_ns - ((plan.done_ns or plan.committed_ns) if is_same else began_ns))

    def recovery_began_ns(self, plan: PlanRecord) -> int:
        """Return the time at which the recovery completed by this plan first became necessary.

        Immediately preceding plans that were never fully applied belong to the same recovery.
        """
        plans = self.image.plans
        index = plan.number - plans[0].number
        while index > 0 and not plans[index - 1].done_ns and plans[index - 1].number > self.start_plan:
            index -= 1
        return plans[index].suspected_ns

    def continues_stopped_fleet(self, plan: PlanRecord) -> bool:
        """Return whether all hosts had left as planned before this plan, as with `snapline down`. The time until they came back is no
        recovery's."""
        plans = self.image.plans
        index = plan.number - plans[0].number
        return plan.reason == PLANNED_STOP and index > 0 and set(plans[index - 1].hosts) <= set(plan.lost)

    def complete_epochs(self) -> list[int]:
        """Return the epochs that are complete and neither condemned nor void, in ascending order."""
        return [epoch for epoch, record in self.image.epochs.items() if record.status == COMPLETE]

    def left_before(self) -> dict[str, int]:
        """Map each removed agent to the lowest epoch that no longer contains it."""
        left = {
            agent: record.left_epoch + 1 for agent, record in self.image.agents.items() if record.left_epoch is not None
        }
        return {**dict.fromkeys(self.image.gone, 0), **left}

    def open_epochs(self) -> tuple[int, ...]:
        """Return the open epochs in ascending order."""
        return tuple([epoch for epoch, record in self.image.epochs.items() if record.status == OPEN])

    def members_of(self, epoch: int) -> list[str]:
        """Return the members of an epoch, in the order of their creation."""
        return [agent for agent, _ in self.member_records(epoch)]

    def member_records(self, epoch: int) -> list[tuple[str, AgentRecord]]:
        """Return the members of an epoch with their records, in the order of their creation."""
        return [(agent, record) for agent, record in self.image.agents.items() if record.is_member_of(epoch)]

    def has_left(self, agent: str) -> bool:
        """Return whether `agent` has been removed from the fleet."""
        record = self.image.agents.get(agent)
        return agent in self.image.gone if record is None else record.left_plan is not None

    def has_left_before(self, agent: str, epoch: int) -> bool:
        """Return whether `agent` was removed before `epoch`."""
        record = self.image.agents.get(agent)
        if record is None:
            return agent in self.image.gone
        return record.left_epoch is not None and record.left_epoch < epoch

    def placed_by(self, plan: PlanRecord) -> Iterator[tuple[str, AgentRecord]]:
        """Yield the agents that the current `plan` starts or restarts, ignoring later creations and removals."""
        number = plan.number
        for agent, record in self.image.agents.items():
            if record.created_plan < number and (record.left_plan is None or record.left_plan >= number):
                yield agent, record

    def living_agents(self) -> Iterator[tuple[str, AgentRecord]]:
        """Return the agents that have not been removed."""
        return ((agent, record) for agent, record in self.image.agents.items() if record.left_plan is None)

    def stranger_of(self, host: str, agents: Iterable[str]) -> str:
        """Return the first known agent in `agents` that is not placed on `host`. A host must not report on agents of other hosts. Return ""
        if all known agents are placed on `host`."""
        records = self.image.agents
        return next((agent for agent in agents if agent in records and records[agent].host != host), "")

    def outcome_of(self, epoch: int) -> OutcomeRecord | None:
        """Return the outcome of an epoch. Return None if the epoch is open, has never begun, or is so old that its outcome has been
        forgotten."""
        for outcome in reversed(self.image.outcomes):
            if outcome.epoch == epoch:
                return outcome
        return None

    def is_reset_to_unborn(self, agent: str) -> bool:
        """Return whether the current plan has reset `agent` to the state before its creation. The turn that creates this agent may run
        again, and the creation must then succeed.

        A plan resets an agent whose creation is still pending in its parent's checkpoint, if the recovery line contains the agent or a
        message to it from a third agent. If the creation is in transit and another agent creates the same agent, the host dead-letters
        the second creation.
        """
        return self.plan is not None and agent in self.plan.unborn and agent in self.image.agents

    def is_child_of(self, agent: str, parent: str) -> bool:
        """Return whether recovery is local, `agent` was created by `parent`, and `agent` has not left the fleet."""
        record = self.image.agents.get(agent)
        if self.image.recovery != LOCAL or not parent or record is None:
            return False
        return record.parent == parent and record.left_plan is None

    def may_create_again(self, agent: str, parent: str) -> bool:
        """Return whether `parent` may create the known agent `agent` again, which keeps its record."""
        return self.is_reset_to_unborn(agent) or self.is_child_of(agent, parent)

    def why_work_is_over(self, host: str, host_start: int, plan: int) -> str:
        """Return why requests from this run of a host under this plan are no longer accepted, or "" if they are accepted."""
        record = self.image.hosts.get(host)
        if self.image.outcome:
            return "the fleet has ended"
        if plan != self.plan_number:
            return f"plan {plan} has been replaced by plan {self.plan_number}"
        if record is None or record.start != host_start or record.state != ALIVE:
            return f"this run of host {host} is over"
        return ""

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if one is violated."""
        image, plan = self.image, self.plan
        numbers = list(image.epochs)
        assert numbers == sorted(numbers) and (not numbers or numbers[-1] <= image.begun), "epochs out of order"
        opened = self.open_epochs()
        assert len(opened) <= EPOCHS_OPEN_MAX, "too many open epochs"
        if self.phase != RUNNING:
            may_recover = self.phase == RECOVERING and is_autonomous(image.protocol)
            wrong_epochs = [
                epoch for epoch in opened if not may_recover or image.epochs[epoch].trigger != RECOVERY_TRIGGER
            ]
            assert not wrong_epochs, f"epochs {wrong_epochs} are open while the fleet is {self.phase}"
        for epoch in opened:
            assert plan is not None and epoch > plan.begun_epoch, f"epoch {epoch} outlived a plan"
            assert image.epochs[epoch].plan == plan.number and not image.epochs[epoch].root
        for epoch, record in image.epochs.items():
            assert record.status == OPEN or record.root, f"epoch {epoch} ended without a root"
            is_known = all(agent in image.agents for agent in record.unborn)
            assert is_known or record.status in (CONDEMNED, VOID), f"an unborn agent of epoch {epoch} is unknown"
        assert image.begun == image.completed + image.aborted + len(opened), "an epoch without exactly one outcome"
        ordinals = {record.ordinal for record in image.agents.values()}
        assert len(ordinals) == len(image.agents), "two agents have one ordinal"
        assert max(ordinals, default=-1) < image.next_ordinal, "an ordinal may be used again"
        for agent, agent_record in image.agents.items():
            assert agent not in image.gone, f"{agent} is both known and gone"
            assert (agent_record.left_epoch is None) == (agent_record.left_plan is None), f"{agent} left by half"
            if plan is not None and agent_record.left_plan is None:
                incarnation = agent_record.incarnation
                is_kept = image.recovery == LOCAL and incarnation >= image.era
                assert incarnation == plan.number or is_kept, f"{agent} has incarnation {incarnation}"
                assert agent_record.host in plan.hosts, (
                    f"{agent} is on {agent_record.host}, which the plan does not use"
                )
        if plan is not None:
            assert bool(plan.done_ns) == (sorted(plan.confirmed) == plan.hosts), "done without all, or not with all"
            assert [x.number for x in image.plans] == list(range(image.plans[0].number, plan.number + 1))
        numbers = [call.number for call in (*image.calls, *image.refusals)]
        assert len(set(numbers)) == len(numbers) and max(numbers, default=0) <= image.calls_made, (
            "calls are numbered twice"
        )
        assert len(image.requests) <= CLIENTS_MAX and len(image.agents) <= AGENTS_MAX


class Ancestor(msgspec.Struct, frozen=True, gc=False):
    """An earlier epoch in a lineage. `is_condemned` is true if the epoch's data is damaged."""

    epoch: int
    root: str
    is_condemned: bool


def lineage_of(image: FleetImage, epoch: int) -> tuple[Ancestor, ...] | None:
    """Return the predecessors of a known epoch, newest first, up to and including the first predecessor that is not condemned.

    Return an empty tuple if only the initial states precede the epoch. Return None if part of the lineage has been forgotten.
    """
    ancestors: list[Ancestor] = []
    plan, below = image.epochs[epoch].plan, epoch
    while True:
        before = _predecessor(image, plan, below)
        if before is None or before == 0:
            return None if before is None else tuple(ancestors)
        record = image.epochs[before]
        ancestors.append(Ancestor(before, record.root, record.status == CONDEMNED))
        if record.status != CONDEMNED:
            return tuple(ancestors)
        plan, below = record.plan, before


def _predecessor(image: FleetImage, plan: int, below: int) -> int | None:
    """Return the newest epoch of the plan's history below `below` that is not open, or the history's recovery line if no such epoch exists.
    Return None if the predecessor has been forgotten or may have been forgotten."""
    history = _history_of(image, plan)
    for epoch in reversed(image.epochs):
        record = image.epochs[epoch]
        if epoch < below and record.status != OPEN and _history_of(image, record.plan) == history:
            return epoch if epoch > image.forgotten or _is_whole(image, history) else None
    if not _is_whole(image, history):
        return None
    line = _line_of(image, history)
    return line if line in image.epochs or not line else None


def _history_of(image: FleetImage, plan: int) -> int:
    """Return the number of the first plan of the history to which this plan belongs: the plan itself, or with local recovery the plan that
    began the era, where 0 denotes the fleet's first plan. For a plan of an earlier era that is not known any more, return a number that no
    other plan has."""
    if image.recovery != LOCAL:
        return plan
    if plan >= image.era:
        return image.era
    record = _plan(image, plan)
    return -plan if record is None else record.era


def _first_plan(image: FleetImage, history: int) -> PlanRecord | None:
    return _plan(image, history or (1 if image.fork is None else image.fork.plan + 1))


def _line_of(image: FleetImage, history: int) -> int | None:
    """Return the recovery line from which the history began, or None if it is not known any more."""
    if image.recovery == LOCAL and history == image.era:
        return image.era_line
    first = _first_plan(image, history)
    return first.line_epoch if first is not None else None


def _is_whole(image: FleetImage, history: int) -> bool:
    """Return whether the start of the history is known and none of its epochs has been forgotten. Epochs are forgotten oldest first."""
    first, line = _first_plan(image, history), _line_of(image, history)
    if first is not None:
        return image.forgotten <= first.begun_epoch
    return line is not None and image.forgotten <= line


def _plan(image: FleetImage, number: int) -> PlanRecord | None:
    return next((plan for plan in image.plans if plan.number == number), None)


def has_fallen_back(image: FleetImage, epoch: int, after: int) -> bool:
    """Return whether the fleet has abandoned a complete epoch between `epoch` and its predecessor `after`."""
    history = _history_of(image, image.epochs[epoch].plan)
    passed_over = {x: r for x, r in image.epochs.items() if after < x < epoch and r.status in (CONDEMNED, VOID)}
    return any(_history_of(image, record.plan) != history for record in passed_over.values())


def forgettable_below(image: FleetImage, pending: list[int]) -> int | None:
    """Return the lowest epoch that must be kept while the `pending` epochs are not released, or None if none must be kept."""
    lineages = [lineage_of(image, epoch) for epoch in pending]
    return min(
        [ancestors[-1].epoch if ancestors else 0 for ancestors in lineages if ancestors is not None], default=None
    )


def refusal_of_restore(image: FleetImage, epoch: int) -> str:
    """Return why the fleet cannot be restored to this epoch, with advice, or "" if it can be restored."""
    record = image.epochs.get(epoch)
    if record is not None and record.status == COMPLETE:
        return ""
    if record is None and epoch > image.begun:
        return f"there is no epoch {epoch}: `snapline snapshot list` lists what there is"
    if record is None:
        return (
            f"the coordinator does not keep epoch {epoch} any more, or it never was complete: go back to one of "
            f"{_named(image)}, or make a new fleet of that snapshot with `snapline snapshot fork`"
        )
    if record.status == OPEN:
        return f"epoch {epoch} is not complete yet: wait for it, or go back to one of {_named(image)}"
    if record.status == CONDEMNED:
        return f"epoch {epoch} is damaged: go back to one of {_named(image)}"
    return f"epoch {epoch} is void, the fleet went back past it: go back to one of {_named(image)}"


def _named(image: FleetImage) -> str:
    complete = [str(epoch) for epoch, record in image.epochs.items() if record.status == COMPLETE]
    return "epochs " + ", ".join(complete) if complete else "no epoch at all (none is complete)"


def above(image: FleetImage, epoch: int) -> list[int]:
    """Return the complete epochs, in ascending order, that become void if the fleet is restored to `epoch`."""
    return [later for later, record in image.epochs.items() if later > epoch and record.status == COMPLETE]


def make_void(image: FleetImage, epoch: int) -> list[int]:
    """Make all complete epochs above `epoch` void, and return them."""
    discarded = above(image, epoch)
    for later in discarded:
        image.epochs[later].status = VOID
    return discarded
