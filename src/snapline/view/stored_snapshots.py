"""A store without a running coordinator, for the view's pages: its snapshots, and its fleet's external output.

Page of the snapshots of a store at rest, for a file: no coordinator is running to report the fleet's state.
"""

from collections import Counter, deque

from snapline.agent_runtime.effect_ledger import fold
from snapline.agent_runtime.output_reading import Output, OutputsReverted
from snapline.agent_runtime.snapshots.cut import describe_state
from snapline.agent_runtime.snapshots.reader import open_store
from snapline.coordinator.service.documents import list_snapshots, show_document
from snapline.errors import DamagedDataError, NotFoundError, UsageError
from snapline.messages.answers import SnapshotList
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.messages.payloads import describe_payload
from snapline.storage.retention.catalog import SnapshotSummary
from snapline.storage.store.store import Store
from snapline.view.display_text import count, plural, size
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.page_elements import section, table
from snapline.view.pending_work_page import (
    LEDGER_RECORDS_MAX,
    NEWEST_MAX,
    OUTPUTS_ENOUGH,
    SEARCH_EPOCHS_FIRST,
    SEARCH_EPOCHS_STEP,
    TOPICS_MAX,
    NewestOutputs,
    WaitingFacts,
)


class StoreAtRest:
    """Reads a store; documents are those of the commands with `-o json`."""

    def __init__(self, location: str) -> None:
        """Raise StoreError if there is none."""
        self._store = Store.open(location)
        self._outputs = open_store(location)

    def listed(self) -> SnapshotList:
        """Answer as `snapline snapshot list`."""
        return list_snapshots(self._store)

    def snapshot_at(self, snapshot: str) -> dict[str, object]:
        """Answer like `snapline snapshot show`. NotFoundError, DamagedDataError."""
        document = show_document(
            self._store, snapshot, describe_state=describe_state, describe_message=describe_payload
        )
        return dict(document)

    def outside(self, last_epoch: int) -> WaitingFacts:
        """Return the effects and the newest outputs in the snapshots. DamagedDataError."""
        records: deque[Output | OutputsReverted] = deque(maxlen=LEDGER_RECORDS_MAX)
        count = 0
        for record in self._outputs.outputs(EFFECTS_TOPIC, message_type=EffectRecord):
            records.append(record)
            count += 1
        return WaitingFacts(
            outputs=self._newest(last_epoch), effects=fold(records), is_ledger_whole=count <= LEDGER_RECORDS_MAX
        )

    def _newest(self, last_epoch: int) -> NewestOutputs:
        """Return the newest outputs like `ledger.newest_outputs`: search further back until there are enough."""
        epochs_back = SEARCH_EPOCHS_FIRST
        while True:
            since = max(0, last_epoch - epochs_back)
            newest = self._since(since)
            if not since or sum(newest.counts.values()) >= OUTPUTS_ENOUGH:
                return newest
            epochs_back *= SEARCH_EPOCHS_STEP

    def _since(self, epoch: int) -> NewestOutputs:
        topics, counts = dict[str, deque[Output]](), Counter[str]()
        try:
            for outputs in self._outputs.outputs(after=f"{epoch}.0" if epoch else ""):
                if isinstance(outputs, Output) and (outputs.topic in topics or len(topics) < TOPICS_MAX):
                    topics.setdefault(outputs.topic, deque(maxlen=NEWEST_MAX)).append(outputs)
                    counts[outputs.topic] += 1
        except DamagedDataError:
            raise
        except (UsageError, NotFoundError):
            if not epoch:
                raise
        return NewestOutputs({topic: tuple(outputs) for topic, outputs in topics.items()}, counts, epoch)


ROWS_MAX = 256
"""Largest number of snapshots, the newest: as many as the history of epochs has."""

COLUMNS = (
    *(("Epoch", ""), ("Taken", ""), ("Why", ""), ("Plan", "number"), ("Hosts", "number"), ("Agents", "number")),
    *(("States", "number"), ("In transit", "number"), ("Kept as", "wide")),
)


def store_body(listed: SnapshotList) -> Markup:
    """Draw what `snapline snapshot list -o json` prints."""
    newest = listed.snapshots[-1] if listed.snapshots else None
    about = [listed.store, *([newest.fleet, newest.protocol] if newest is not None else [])]
    title = tag("div", tag("h1", "Store"), tag("p", " · ".join(filter(None, about)), class_="quiet"), class_="title")
    shown = list(reversed(listed.snapshots[-ROWS_MAX:]))
    summary = plural(len(listed.snapshots), "snapshot") + (
        f", the newest {ROWS_MAX} are shown" if len(listed.snapshots) > ROWS_MAX else ""
    )
    damage = (
        tag("p", f"Its tags cannot be read: {listed.tags_damage}.", class_="strip bad") if listed.tags_damage else None
    )
    fork = (
        tag("p", f"The fleet was forked from epoch {listed.fork.epoch} of {listed.fork.parent_name}.")
        if listed.fork
        else None
    )
    rows = [_row(each, listed) for each in shown]
    body = table(COLUMNS, rows, label="Snapshots") if rows else tag("p", "It holds no snapshot.", class_="quiet")
    return join([title, damage, fork, section("snapshots", summary, body)])


def _row(each: SnapshotSummary, listed: SnapshotList) -> Markup:
    name = tag("th", tag("a", each.epoch, href=f"/epochs/{each.epoch}"), scope="row")
    if each.damage:
        return tag("tr", name, tag("td", f"cannot be read: {each.damage}", class_="wide bad", colspan=len(COLUMNS) - 1))
    names = [tag for tag, epoch in sorted(listed.tags.items()) if epoch == each.epoch]
    kept = [*names, *(["pinned"] if each.epoch in listed.pins else [])]
    numbers: list[Child] = [
        *(count(each.plan), count(len(each.hosts)), count(each.agent_count), size(each.state_bytes)),
        count(each.channel_state_messages),
    ]
    cells = [tag("td", number, class_="number") for number in numbers]
    created = each.created.replace("T", " ").removesuffix("Z")
    return tag(
        "tr", name, tag("td", created), tag("td", each.trigger), cells, tag("td", ", ".join(kept), class_="wide")
    )
