"""Define and run the actions that operators can confirm. Each confirmation page belongs to one action, which is run at most once.

A confirmation page has an unguessable key, and its action stores the details shown on the page, such as a host's generation or the plan. So
the action does exactly what the page described, even if the leader has changed, and regardless of the form's contents. If a form is
submitted again, by a reload or a second click, the view returns the outcome of the first submission. A form with an unknown key has no
effect, and the operator must open a new page.

Actions on the fleet make the same calls as the CLI commands. Confirmation pages describe the effects using the actual numbers of the fleet.
Actions on stored snapshots (tagging, pinning, forking) change the store directly, as the CLI commands do. They require the fleet's folder
on this machine, and are not recorded in the coordinator's audit log.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from snapline.agent_runtime.snapshots.snapshot_forks import ForkInputs, ForkRequest, fork_snapshot
from snapline.deploy.data_directory import STORE_FOLDER, folder_of_fork
from snapline.errors import CoordinatorUnavailableError, NotFoundError, SnaplineError, UnknownOutcomeError, UsageError
from snapline.ids import check_id
from snapline.messages.answers import RestorePreview
from snapline.messages.approvals import KEPT, NOTE_CHARACTERS_MAX, OpenApproval
from snapline.messages.coordinator_client import CoordinatorClient, retry_until_available
from snapline.messages.status import FleetStatus, HostStatus, SnapshotOutcome
from snapline.storage.store.catalog import SnapshotSummary
from snapline.storage.store.store import Holds, Store
from snapline.view.display_text import (
    describe_interval,
    describe_work_at_risk,
    named,
    plural,
    seconds,
    size,
    undone_in_fleet,
    undone_outside_fleet,
)
from snapline.view.markup import Markup
from snapline.view.page_elements import approval_details, restorable_epochs
from snapline.view.recovery_page import LineFacts, line_result

KEPT_MAX = 512
"""Largest number of confirmation pages that are kept with their outcomes. The oldest page whose action is not in progress is removed
first."""

WAIT_S = 8.0
"""Longest wait in seconds for an action's outcome before the page reports that the action is in progress. Most actions take less than a
second."""


class ActionOutcome(msgspec.Struct, frozen=True):
    """Outcome of an action, as a sentence and a link. `is_bad` is True if the action failed or its outcome is unknown."""

    sentence: str
    address: str = "/"
    where: str = "The fleet"
    is_bad: bool = False


Fields = Mapping[str, str]


class ActionField(msgspec.Struct, frozen=True):
    """Form field for the operator to fill in.

    `choices` lists the value and label of each choice. If `choices` is empty, the operator enters text of at most `characters_max`
    characters.
    """

    name: str
    label: str
    choices: tuple[tuple[str, str], ...] = ()
    is_required: bool = False
    characters_max: int = 128


class ProposedAction(msgspec.Struct, frozen=True):
    """An action, with the contents of its confirmation page.

    Attributes:
        title: short name of the action.
        button: label of the button.
        sentences: description of the action's effects.
        do: function that runs the action with the submitted fields.
        check: address and name of a page that shows whether the action took effect, for operators who did not learn the outcome.
        more: content to show below the sentences.
        is_grave: whether the action undoes work or stops a process.
    """

    title: str
    button: str
    sentences: tuple[str, ...]
    do: Callable[[Fields], Awaitable[ActionOutcome]]
    check: tuple[str, str] = ("/", "The fleet")
    fields: tuple[ActionField, ...] = ()
    more: Markup | None = None
    is_grave: bool = False


class _Kept:
    def __init__(self, session: str, proposed: ProposedAction) -> None:
        self.session = session
        self.proposed = proposed
        self.task: asyncio.Task[ActionOutcome] | None = None

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()


class Actions:
    """Proposed actions by key, with their outcomes. Each instance may be used from only one event loop."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept: dict[str, _Kept] = {}
        self._kept_max = kept_max

    def propose(self, session: str, proposed: ProposedAction) -> str:
        """Store a proposed action, and return the key that the session's form must contain.

        Raises:
            UsageError: If too many actions are in progress.
        """
        while len(self._kept) >= self._kept_max:
            oldest = next((key for key, kept in self._kept.items() if not kept.is_running), None)
            if oldest is None:
                raise UsageError(f"{self._kept_max} actions are under way: wait for one")
            del self._kept[oldest]
        key = secrets.token_urlsafe(16)
        self._kept[key] = _Kept(session, proposed)
        return key

    async def do(self, session: str, key: str, fields: Fields) -> None:
        """Run the action unless it has already been started. Wait at most `WAIT_S` seconds for the outcome.

        Raises:
            UsageError: If no page of this session has this key.
        """
        kept = self._find(session, key)
        if kept.task is None:
            kept.task = asyncio.create_task(_done(kept.proposed, fields))
        await asyncio.wait({kept.task}, timeout=WAIT_S)

    def outcome(self, session: str, key: str) -> tuple[ProposedAction, ActionOutcome | None]:
        """Return the action and its outcome, which is None while the action is in progress.

        Raises:
            UsageError: If no page of this session has this key, or the form on that page was not submitted.
        """
        kept = self._find(session, key)
        if kept.task is None:
            raise UsageError("that was not confirmed: nothing has been done")
        return kept.proposed, None if kept.is_running else kept.task.result()

    async def close(self) -> None:
        """Stop waiting for outcomes. The fleet still completes the actions that were requested."""
        tasks = [kept.task for kept in self._kept.values() if kept.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, session: str, key: str) -> _Kept:
        kept = self._kept.get(key)
        if kept is None or kept.session != session:
            raise UsageError(
                "this page is too old, or was not made for you: nothing has been done; look again, and confirm that"
            )
        return kept


async def _done(proposed: ProposedAction, fields: Fields) -> ActionOutcome:
    address, where = proposed.check
    values = {each.name: fields.get(each.name, "").strip()[: each.characters_max] for each in proposed.fields}
    try:
        return await proposed.do(values)
    except (UnknownOutcomeError, CoordinatorUnavailableError) as error:
        message = f"Nobody knows whether that was done: {error}. Look before you ask again."
        return ActionOutcome(message, address, where, is_bad=True)
    except (SnaplineError, OSError) as error:
        return ActionOutcome(f"That was not done: {error}.", address, where, is_bad=True)


DROP, GIVE = "drop", "give"
# -- fleet -------------------------------------------------------------------------------------------------------------


REASON_CHARACTERS_MAX = 200
RECOVERY = ("/recovery", "Recoveries")
FLEET = ("/", "The fleet")
WAITING = ("/waiting", "Waiting")


def others_for_agents(facts: FleetStatus, host: HostStatus) -> list[str]:
    """Return the hosts that could take over the agents of this host."""
    return [x.host for x in facts.hosts if x.state == "alive" and x.host != host.host and not x.is_drained]


class FleetActions:
    """Proposes actions on the fleet. `facts` is the fleet's latest known state. Failures raise SnaplineError."""

    def __init__(self, coordinator: CoordinatorClient) -> None:
        self._coordinator = coordinator

    async def restorable(self) -> frozenset[int]:
        """Return the epochs to which the fleet can be restored. The store may contain additional epochs."""
        return restorable_epochs(await retry_until_available(lambda: self._coordinator.read_snapshots("history")))

    async def snapshot(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to take a snapshot now."""
        alive = [host for host in facts.hosts if host.state == "alive"]
        effects = [
            f"A snapshot of {plural(facts.agents, 'agent')} on {plural(len(alive), 'host')} is taken now. They go on meanwhile.",
            f"So far: {describe_interval(facts.interval)}.",
            "Like any other it stays as long as the coordinator's retention says; a tag or a pin keeps it.",
        ]
        if facts.last_complete_epoch:
            effects.insert(1, f"The newest complete epoch is {facts.last_complete_epoch:,}.")
        return ProposedAction("Take a snapshot", "Take a snapshot", tuple(effects), self._take, ("/epochs", "Epochs"))

    async def _take(self, _fields: Fields) -> ActionOutcome:
        return taken(await retry_until_available(self._coordinator.create_snapshot))

    async def restore(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to restore the whole fleet to a snapshot."""
        preview = await retry_until_available(lambda: self._coordinator.preview_restore(query.get("snapshot", "")))
        token = secrets.token_hex(16)  # a repeated request from this page means the same restore

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

    async def drain(self, facts: FleetStatus, query: Fields) -> ProposedAction:
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

    async def resume(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to allow agents on a drained host again."""
        host = _host_of(facts, query)
        effects = (
            f"Agents may live on host {host.host} again: they come with the next recovery, or by `snapline host spread`.",
        )

        async def do(_fields: Fields) -> ActionOutcome:
            await retry_until_available(lambda: self._coordinator.move_agents(resumed=(host.host,)))
            return ActionOutcome(f"Agents may come to host {host.host} again.", *FLEET)

        return ProposedAction(f"Resume host {host.host}", f"Resume {host.host}", effects, do)

    async def kill(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to end a host's process."""
        host = _host_of(facts, query)
        failed = f"host:{host.host}"
        document: Mapping[str, object] = await retry_until_available(lambda: self._coordinator.recovery_line([failed]))
        line = msgspec.convert({**document, "failed": (failed,)}, LineFacts)
        effects = (
            f"The process of host {host.host} (start {host.host_start:,}) ends at once, as by a failure. {plural(host.agents, 'agent')} live there.",
            f"Work at risk in the fleet: {describe_work_at_risk(facts)}.",
            "Who keeps the fleet starts a process again. Drain the host before, and nothing goes back.",
        )

        async def do(_fields: Fields) -> ActionOutcome:
            await retry_until_available(lambda: self._coordinator.end_host(host.host, host_start=host.host_start))
            return ActionOutcome(f"Start {host.host_start:,} of host {host.host} is ended: the fleet recovers.", *FLEET)

        return ProposedAction(
            f"Kill host {host.host}", f"Kill {host.host}", effects, do, more=line_result(line), is_grave=True
        )


class ApprovalCalls(Protocol):
    """Interface that `ApprovalActions` requires from the client of the fleet."""

    async def approvals(self) -> list[OpenApproval]: ...

    async def answer_approval(self, agent: str, approval: str, *, is_granted: bool, note: str) -> str: ...


class ApprovalActions:
    """Proposes to grant or deny what agents ask. Failures raise SnaplineError."""

    def __init__(self, calls: ApprovalCalls) -> None:
        self._calls = calls

    async def grant(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to grant an approval."""
        return await self._answer(query.get("id", ""), is_granted=True)

    async def deny(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to deny an approval."""
        return await self._answer(query.get("id", ""), is_granted=False)

    async def _answer(self, approval: str, *, is_granted: bool) -> ProposedAction:
        asked = next((each for each in await self._calls.approvals() if each.id == approval), None)
        if asked is None:
            raise NotFoundError("no agent waits for that any more: it is decided, or the fleet has gone another way")

        async def do(fields: Fields) -> ActionOutcome:
            status = await self._calls.answer_approval(
                asked.agent, asked.id, is_granted=is_granted, note=fields.get("note", "")
            )
            later = " when it asks again, after a recovery" if status == KEPT else ""
            word = "Granted" if is_granted else "Denied"
            return ActionOutcome(f"{word}: agent {asked.agent} goes on with that{later}.", *WAITING)

        verb = "Grant" if is_granted else "Deny"
        sentences = (f"Agent {asked.agent} asks: {asked.title}.", "The first answer counts, and cannot be taken back.")
        fields = (ActionField("note", "A note for the agent", characters_max=NOTE_CHARACTERS_MAX),)
        more = approval_details(asked.details)
        return ProposedAction(
            f"{verb} {asked.title!r}", verb, sentences, do, WAITING, fields, more, is_grave=not is_granted
        )


def taken(outcome: SnapshotOutcome) -> ActionOutcome:
    """Describe the outcome of a request to take a snapshot."""
    if not outcome.is_complete:
        epoch = f"Epoch {outcome.epoch} was aborted" if outcome.epoch else "No epoch has begun"
        return ActionOutcome(f"{epoch}: {outcome.reason}.", "/epochs", "Epochs", is_bad=True)
    where = (f"/epochs/{outcome.epoch}", f"Epoch {outcome.epoch}")
    if outcome.reason:
        return ActionOutcome(f"That is no new snapshot: {outcome.reason}.", *where)
    return ActionOutcome(f"Epoch {outcome.epoch} is complete, in {seconds(outcome.elapsed_ns / 1e9)}.", *where)


def _host_of(facts: FleetStatus, query: Fields) -> HostStatus:
    name = query.get("host", "")
    for host in facts.hosts:
        if host.host == name:
            return host
    raise NotFoundError(f"no host {name!r} in this fleet")


def _restore_effects(preview: RestorePreview, facts: FleetStatus) -> tuple[str, ...]:
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


# -- store -------------------------------------------------------------------------------------------------------------


ACT = ("/act", "Actions")


class KeptSnapshots(msgspec.Struct, frozen=True):
    """The output of `snapline snapshot list`."""

    snapshots: tuple[SnapshotSummary, ...] = ()
    pins: tuple[int, ...] = ()
    tags: Mapping[str, int] = {}

    def tags_of(self, epoch: int) -> list[str]:
        """Return the tags of a snapshot."""
        return sorted([name for name, tagged in self.tags.items() if tagged == epoch])


class StoreActions:
    """Proposes actions on stored snapshots.

    These actions require `folder`, the fleet's folder on this machine. Failures raise SnaplineError.
    """

    def __init__(self, coordinator: CoordinatorClient, folder: Path | None) -> None:
        self._coordinator = coordinator
        self._folder = folder

    @property
    def is_here(self) -> bool:
        """Return whether the store is on this machine, as actions on stored snapshots require."""
        return self._folder is not None and (self._folder / STORE_FOLDER).is_dir()

    async def kept(self) -> KeptSnapshots:
        """Return the existing snapshots with their pins and tags."""
        return msgspec.convert(
            await retry_until_available(lambda: self._coordinator.read_snapshots("list")), KeptSnapshots
        )

    async def tag(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to tag a snapshot."""
        chosen, about = await self._find(query)
        named = (await self.kept()).tags_of(chosen.epoch)
        effects = [
            about,
            "It is kept as long as it has a name. A name is that of one snapshot: to move it, remove it first.",
        ]
        effects += [f"It is called {', '.join(named)} already."] if named else []

        def do(fields: Fields) -> ActionOutcome:
            name = fields.get("name", "")
            self._holds(chosen).tag(name, chosen.epoch)
            return ActionOutcome(f"Epoch {chosen.epoch} is called {name}.", *ACT)

        field = ActionField("name", "Name, such as before-upgrade", is_required=True)
        return _proposed(f"Tag epoch {chosen.epoch}", effects, do, (field,))

    async def untag(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to remove a tag."""
        name = query.get("name", "")
        epoch = (await self.kept()).tags.get(name)
        if epoch is None:
            raise NotFoundError(f"there is no tag {name!r}")
        effects = [
            f"Epoch {epoch} is not called {name} any more. If nothing else keeps it, it goes when the coordinator's retention says so."
        ]

        def do(_fields: Fields) -> ActionOutcome:
            holds = Holds(self._store(), now_s=time.time)
            if [tag.epoch for tag in holds.tags() if tag.name == name] != [epoch] or not holds.untag(name):
                raise UsageError(f"tag {name} does not name epoch {epoch} any more: somebody has moved or removed it")
            return ActionOutcome(f"Epoch {epoch} is not called {name} any more.", *ACT)

        return _proposed(f"Remove tag {name}", effects, do)

    async def pin(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to pin a snapshot."""
        chosen, about = await self._find(query)

        def do(_fields: Fields) -> ActionOutcome:
            self._holds(chosen).pin(chosen.epoch)
            return ActionOutcome(f"Epoch {chosen.epoch} is pinned.", *ACT)

        return _proposed(f"Pin epoch {chosen.epoch}", [about, "It is kept until the pin is removed."], do)

    async def unpin(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to unpin a snapshot."""
        pinned = {str(epoch): epoch for epoch in (await self.kept()).pins}
        epoch = pinned.get(query.get("snapshot", ""))
        if epoch is None:
            raise NotFoundError(f"epoch {query.get('snapshot', '')!r} is not pinned")
        effects = [
            f"All pins of epoch {epoch} are removed. If nothing else keeps it, it goes when the coordinator's retention says so."
        ]

        def do(_fields: Fields) -> ActionOutcome:
            if not Holds(self._store(), now_s=time.time).unpin(epoch):
                raise NotFoundError(f"epoch {epoch} is not pinned any more")
            return ActionOutcome(f"Epoch {epoch} is not pinned any more.", *ACT)

        return _proposed(f"Unpin epoch {epoch}", effects, do)

    async def fork(self, facts: FleetStatus, query: Fields) -> ProposedAction:
        """Propose to fork a snapshot into a new fleet, which runs next to this one."""
        chosen, about = await self._find(query)
        parent = self._own_folder().absolute().parent
        effects = [
            about,
            f"A new fleet is made of it, in a new folder of {parent}; its store is a copy. This fleet is not changed, and may run on.",
            "It does not start automatically, and runs no effects: `snapline run MODULE:FLEET --data-dir` runs it. States that differ take `snapline snapshot fork`.",
        ]

        def do(fields: Fields) -> ActionOutcome:
            name = check_id(fields.get("name", ""), "fork")
            folder = parent / name
            if name.startswith(".") or folder.exists():
                raise UsageError(f"{folder} cannot be the folder of a fork, or is there already: choose another name")
            inputs: ForkInputs = "copy" if fields.get("inputs") == "copy" else "drop"
            self._holds(chosen)
            with folder_of_fork(folder) as store:
                forked = fork_snapshot(self._store(), chosen.epoch, str(store), ForkRequest(name=name, inputs=inputs))
            agents = f"{plural(forked.agents, 'agent')}, {plural(forked.messages, 'message')} in transit"
            return ActionOutcome(f"Fork {name} is made in {folder}: {agents}. Run it with --data-dir {folder}.", *ACT)

        choices = (("drop", "stay here"), ("copy", "are taken along"))
        fields = (
            ActionField("name", "Name of the fork, and of its folder", is_required=True),
            ActionField("inputs", "Inputs that its agents have not consumed", choices),
        )
        return _proposed(f"Fork epoch {chosen.epoch}", effects, do, fields)

    async def _find(self, query: Fields) -> tuple[SnapshotSummary, str]:
        """Find the requested snapshot, and return it with a sentence that describes it."""
        snapshot = query.get("snapshot", "")
        for each in (await self.kept()).snapshots:
            if str(each.epoch) == snapshot and not each.damage:
                state = f"{plural(each.agent_count, 'agent')}, {size(each.state_bytes)} of states"
                transit = f"{plural(each.channel_state_messages, 'message')} in transit"
                return each, f"Epoch {each.epoch} was taken {each.created}: {state}, {transit}."
        raise NotFoundError(f"there is no snapshot {snapshot!r}, or it is damaged")

    def _own_folder(self) -> Path:
        if self._folder is None or not self.is_here:
            raise UsageError(
                "the fleet's store is not on this machine as far as this view knows: start it with --data-dir"
            )
        return self._folder

    def _store(self) -> Store:
        return Store.open(str(self._own_folder() / STORE_FOLDER))

    def _holds(self, meant: SnapshotSummary) -> Holds:
        """Return the pins and tags of the store.

        First check that the store still contains the same snapshot that was shown.
        """
        store = self._store()
        if store.read_ref(meant.epoch) != meant.root:
            raise UsageError(
                f"{store.location} holds another epoch {meant.epoch} than the fleet's coordinator tells of"
            )
        return Holds(store, now_s=time.time)


def _proposed(
    title: str, lines: list[str], do: Callable[[Fields], ActionOutcome], fields: tuple[ActionField, ...] = ()
) -> ProposedAction:
    """Return an action whose blocking calls run in a thread."""

    async def done(given: Fields) -> ActionOutcome:
        return await asyncio.to_thread(do, given)

    return ProposedAction(title, title, tuple(lines), done, ACT, fields)
