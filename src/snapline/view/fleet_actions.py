"""Actions of operators on the fleet, with the same calls as the commands. Each describes its effects, with this fleet's numbers, and runs."""

import secrets
from collections.abc import Mapping

import msgspec

from snapline.errors import NotFoundError, UsageError
from snapline.messages.answers import RestorePreview
from snapline.messages.coordinator_client import CoordinatorClient, retry_until_available
from snapline.messages.status import SnapshotOutcome
from snapline.view import loss
from snapline.view.actions import ActionField, ActionOutcome, Fields, ProposedAction
from snapline.view.compensation import named, undone_in_fleet, undone_outside_fleet
from snapline.view.facts import FleetFacts, HostFacts
from snapline.view.links import restorable_epochs
from snapline.view.number_format import plural, seconds
from snapline.view.recovery_page import LineFacts, line_result

DROP, GIVE = "drop", "give"
REASON_CHARACTERS_MAX = 200
RECOVERY = ("/recovery", "Recoveries")
FLEET = ("/", "The fleet")


def others_for_agents(facts: FleetFacts, host: HostFacts) -> list[str]:
    """Return the hosts to which the agents of a host could move."""
    return [x.host for x in facts.hosts if x.state == "alive" and x.host != host.host and not x.is_drained]


class FleetActions:
    """Proposes actions; `facts` is the latest known state of the fleet. Failures are SnaplineErrors."""

    def __init__(self, coordinator: CoordinatorClient) -> None:
        self._coordinator = coordinator

    async def restorable(self) -> frozenset[int]:
        """Return the epochs to which the fleet can go back; others may still be in the store."""
        return restorable_epochs(await retry_until_available(lambda: self._coordinator.read_snapshots("history")))

    async def snapshot(self, facts: FleetFacts, query: Fields) -> ProposedAction:
        """Propose one more snapshot, now."""
        alive = [host for host in facts.hosts if host.state == "alive"]
        effects = [
            f"A snapshot of {plural(facts.agents, 'agent')} on {plural(len(alive), 'host')} is taken now. They go on meanwhile.",
            f"So far: {loss.interval(facts.interval)}.",
            "Like any other it stays as long as the coordinator's retention says; a tag or a pin keeps it.",
        ]
        if facts.last_complete_epoch:
            effects.insert(1, f"The newest complete epoch is {facts.last_complete_epoch:,}.")
        return ProposedAction("Take a snapshot", "Take a snapshot", tuple(effects), self._take, ("/epochs", "Epochs"))

    async def _take(self, _fields: Fields) -> ActionOutcome:
        return taken(await retry_until_available(self._coordinator.create_snapshot))

    async def restore(self, facts: FleetFacts, query: Fields) -> ProposedAction:
        """Propose to restore the whole fleet to a snapshot."""
        preview = await retry_until_available(lambda: self._coordinator.preview_restore(query.get("snapshot", "")))
        token = secrets.token_hex(16)  # a repeated call of this page is the same restore

        async def do(fields: Fields) -> ActionOutcome:
            now = await retry_until_available(self._coordinator.status)
            if now.plan != facts.plan:
                raise UsageError(
                    f"the fleet runs by plan {now.plan} meanwhile, and the page was made under plan {facts.plan}: look again"
                )
            why = " ".join(filter(None, ["asked for in a browser", fields.get("reason", "")]))
            is_dropping = fields.get("inputs") == DROP
            done = await retry_until_available(
                lambda: self._coordinator.restore(str(preview.epoch), token, why[:REASON_CHARACTERS_MAX], is_dropping)
            )
            void = f"; {named('epoch', done.void_epochs)} void" if done.void_epochs else ""
            return ActionOutcome(f"The fleet goes back to epoch {done.epoch} by plan {done.plan}{void}.", *RECOVERY)

        inputs = ((GIVE, "are given again"), (DROP, "are dropped"))
        return ProposedAction(
            f"Take the fleet back to epoch {preview.epoch}",
            f"Go back to epoch {preview.epoch}",
            _restore_effects(preview, facts),
            do,
            RECOVERY,
            (
                ActionField("inputs", "Inputs that it has not consumed then", inputs),
                ActionField("reason", "Why, for the history"),
            ),
            is_grave=True,
        )

    async def drain(self, facts: FleetFacts, query: Fields) -> ProposedAction:
        """Propose to move agents away from a host."""
        host = _host_of(facts, query)
        targets = others_for_agents(facts, host)
        if not targets:
            raise UsageError("no other host would be left for the agents: start one first")
        effects = (
            f"{plural(host.agents, 'agent')} of host {host.host} move to {', '.join(targets)}, by a plan from a snapshot that is taken for it. Nothing is lost.",
            f"No agent comes to {host.host} again until it is resumed, also if its process is started again.",
        )

        async def do(_fields: Fields) -> ActionOutcome:
            await retry_until_available(lambda: self._coordinator.move_agents(drained=(host.host,)))
            return ActionOutcome(
                f"Host {host.host} is marked, and its agents leave it: the fleet's page shows when it has none.", *FLEET
            )

        return ProposedAction(f"Drain host {host.host}", f"Drain {host.host}", effects, do)

    async def resume(self, facts: FleetFacts, query: Fields) -> ProposedAction:
        """Propose that agents may move to a host again."""
        host = _host_of(facts, query)
        effects = (
            f"Agents may live on host {host.host} again: they come with the next recovery, or by `snapline host spread`.",
        )

        async def do(_fields: Fields) -> ActionOutcome:
            await retry_until_available(lambda: self._coordinator.move_agents(resumed=(host.host,)))
            return ActionOutcome(f"Agents may come to host {host.host} again.", *FLEET)

        return ProposedAction(f"Resume host {host.host}", f"Resume {host.host}", effects, do)

    async def kill(self, facts: FleetFacts, query: Fields) -> ProposedAction:
        """Propose to end a host's process."""
        host = _host_of(facts, query)
        failed = f"host:{host.host}"
        document: Mapping[str, object] = await retry_until_available(lambda: self._coordinator.recovery_line([failed]))
        line = msgspec.convert({**document, "failed": (failed,)}, LineFacts)
        effects = (
            f"The process of host {host.host} (start {host.host_start:,}) ends at once, as by a failure. {plural(host.agents, 'agent')} live there.",
            f"Work at risk in the fleet: {loss.at_risk(facts)}.",
            "Who keeps the fleet starts a process again. Drain the host before, and nothing goes back.",
        )

        async def do(_fields: Fields) -> ActionOutcome:
            await retry_until_available(lambda: self._coordinator.end_host(host.host, host_start=host.host_start))
            return ActionOutcome(f"Start {host.host_start:,} of host {host.host} is ended: the fleet recovers.", *FLEET)

        return ProposedAction(
            f"Kill host {host.host}", f"Kill {host.host}", effects, do, more=line_result(line), is_grave=True
        )


def taken(outcome: SnapshotOutcome) -> ActionOutcome:
    """Return the outcome of a snapshot."""
    if not outcome.is_complete:
        epoch = f"Epoch {outcome.epoch} was aborted" if outcome.epoch else "No epoch has begun"
        return ActionOutcome(f"{epoch}: {outcome.reason}.", "/epochs", "Epochs", is_bad=True)
    where = (f"/epochs/{outcome.epoch}", f"Epoch {outcome.epoch}")
    if outcome.reason:
        return ActionOutcome(f"That is no new snapshot: {outcome.reason}.", *where)
    return ActionOutcome(f"Epoch {outcome.epoch} is complete, in {seconds(outcome.elapsed_ns / 1e9)}.", *where)


def _host_of(facts: FleetFacts, query: Fields) -> HostFacts:
    name = query.get("host", "")
    for host in facts.hosts:
        if host.host == name:
            return host
    raise NotFoundError(f"no host {name!r} in this fleet")


def _restore_effects(preview: RestorePreview, facts: FleetFacts) -> tuple[str, ...]:
    inputs = sum([each.count for each in preview.inputs])
    lacking = [each.agent for each in preview.inputs if each.missing]
    effects = [
        f"All {plural(facts.agents, 'agent')} of the fleet go back permanently: everything since then is undone, and no recovery uses it.",
        *undone_in_fleet(preview),
        f"{plural(inputs, 'input')} of {plural(len(preview.inputs), 'agent')} came later"
        if inputs
        else "no inputs came later",
        *(
            [f"some inputs of {', '.join(lacking)} are not kept: it can go back only if inputs are dropped"]
            if lacking
            else []
        ),
        *undone_outside_fleet(preview),
        f"Now it runs by plan {facts.plan:,}. If another takes its place before you confirm, nothing is done.",
    ]
    return tuple([f"{each[:1].upper()}{each[1:].rstrip('.')}." for each in effects])
