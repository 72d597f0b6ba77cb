"""Actions of operators on stored snapshots: tags, pins and forks. They change the store directly, like the commands.

So they need the fleet's folder on this machine, and are not in the coordinator's audit log.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from snapline.agent_runtime.snapshots.forking import ForkInputs, ForkRequest, fork_snapshot
from snapline.deploy.data_directory import STORE_FOLDER, folder_of_fork
from snapline.errors import NotFoundError, UsageError
from snapline.ids import check_id
from snapline.messages.coordinator_client import CoordinatorClient, retry_until_available
from snapline.storage.retention.catalog import SnapshotSummary
from snapline.storage.retention.holds import Holds
from snapline.storage.store.store import Store
from snapline.view.actions import ActionField, ActionOutcome, Fields, ProposedAction
from snapline.view.facts import FleetFacts
from snapline.view.number_format import plural, size

ACT = ("/act", "Actions")


class KeptSnapshots(msgspec.Struct, frozen=True):
    """Content of `snapline snapshot list`."""

    snapshots: tuple[SnapshotSummary, ...] = ()
    pins: tuple[int, ...] = ()
    tags: Mapping[str, int] = {}

    def tags_of(self, epoch: int) -> list[str]:
        """Return the names of a snapshot."""
        return sorted([name for name, tagged in self.tags.items() if tagged == epoch])


class StoreActions:
    """Proposes actions, which need `folder`, the fleet's own. Failures are SnaplineErrors."""

    def __init__(self, coordinator: CoordinatorClient, folder: Path | None) -> None:
        self._coordinator = coordinator
        self._folder = folder

    @property
    def is_here(self) -> bool:
        """Return whether there is a store to act on."""
        return self._folder is not None and (self._folder / STORE_FOLDER).is_dir()

    async def kept(self) -> KeptSnapshots:
        """Return the existing snapshots."""
        return msgspec.convert(
            await retry_until_available(lambda: self._coordinator.read_snapshots("list")), KeptSnapshots
        )

    async def tag(self, facts: FleetFacts, query: Fields) -> ProposedAction:
        """Propose to name a snapshot."""
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

    async def untag(self, facts: FleetFacts, query: Fields) -> ProposedAction:
        """Propose to remove a name."""
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

    async def pin(self, facts: FleetFacts, query: Fields) -> ProposedAction:
        """Propose to pin a snapshot."""
        chosen, about = await self._find(query)

        def do(_fields: Fields) -> ActionOutcome:
            self._holds(chosen).pin(chosen.epoch)
            return ActionOutcome(f"Epoch {chosen.epoch} is pinned.", *ACT)

        return _proposed(f"Pin epoch {chosen.epoch}", [about, "It is kept until the pin is removed."], do)

    async def unpin(self, facts: FleetFacts, query: Fields) -> ProposedAction:
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

    async def fork(self, facts: FleetFacts, query: Fields) -> ProposedAction:
        """Propose a new fleet out of a snapshot, next to this one."""
        chosen, about = await self._find(query)
        beside = self._own_folder().absolute().parent
        effects = [
            about,
            f"A new fleet is made of it, in a new folder of {beside}; its store is a copy. This fleet is not changed, and may run on.",
            "It does not start automatically, and runs no effects: `snapline run MODULE:FLEET --data-dir` runs it. States that differ take `snapline snapshot fork`.",
        ]

        def do(fields: Fields) -> ActionOutcome:
            name = check_id(fields.get("name", ""), "fork")
            folder = beside / name
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
        """Return the requested snapshot, and a sentence about it."""
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
        """Return the holds of the store, if it holds the very snapshot that was shown."""
        store = self._store()
        if store.read_ref(meant.epoch) != meant.root:
            raise UsageError(
                f"{store.location} holds another epoch {meant.epoch} than the fleet's coordinator tells of"
            )
        return Holds(store, now_s=time.time)


def _proposed(
    title: str, told: list[str], do: Callable[[Fields], ActionOutcome], fields: tuple[ActionField, ...] = ()
) -> ProposedAction:
    """Return an action of blocking calls, which are made in a thread."""

    async def done(given: Fields) -> ActionOutcome:
        return await asyncio.to_thread(do, given)

    return ProposedAction(title, title, tuple(told), done, ACT, fields)
