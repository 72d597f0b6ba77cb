"""Write a self-contained HTML file for a bug report. The export contains the available screens of a running fleet, or of a store without a
running fleet.

*Screens.* The exported screens are the pages of the view. If a page is unavailable, a sentence replaces it, so that one failure does not
affect other pages. If the fleet does not respond at all, the export fails and writes no file.

*File.* The file loads nothing from elsewhere. It contains the screens one after another, with their style and without scripts. The file's
content security policy permits the style by its digest and forbids everything else.

*Static markup.* The markup of each screen comes from `markup.tag` and is converted so that it needs no server. Ids are prefixed with the
screen's name, because several screens share one page. Links point to their targets within the file. A link without a target in the file
becomes text. Forms are removed, and ages are replaced by times. Unknown markup is an error, so that an exported file cannot fetch, run or
send anything.

*Redaction.* States, messages, outputs and effects are replaced by the size and a digest of their content. An unkeyed digest of a short
secret could be reversed by brute force, so digests are keyed, and the key is discarded. Equal values have equal digests within one file,
but a digest is useless outside the file.

*Store without a fleet.* If no coordinator is running, the file shows the store's snapshots, and the external outputs and effects of its
fleet.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from html import escape, unescape
from importlib import resources
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from snapline.agent_runtime.effect_ledger import Effect, fold
from snapline.agent_runtime.message_encoding import Output, OutputsReverted
from snapline.agent_runtime.snapshots.snapshot_cut import describe_state
from snapline.agent_runtime.snapshots.snapshot_reader import open_store
from snapline.coordinator.service.documents import list_snapshots, show_document
from snapline.errors import CoordinatorUnavailableError, DamagedDataError, NotFoundError, SnaplineError, UsageError
from snapline.messages.answers import SnapshotList
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.messages.payloads import describe_payload
from snapline.messages.status import FleetStatus
from snapline.storage.store.catalog import SnapshotSummary
from snapline.storage.store.store import Store
from snapline.view.display_text import count, plural, size
from snapline.view.epoch_pages import (
    ROWS_MAX,
    CutAgent,
    CutChannel,
    CutFacts,
    CutMessage,
    CutSearch,
    Plain,
    cut_body,
    cut_of,
    epochs_body,
    no_history,
)
from snapline.view.fleet_page import AgentSearch, FleetScreen, coordinators_body
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.page_elements import Targets, section, table
from snapline.view.pending_work_page import (
    LEDGER_RECORDS_MAX,
    NEWEST_MAX,
    OUTPUTS_ENOUGH,
    SEARCH_EPOCHS_FIRST,
    SEARCH_EPOCHS_STEP,
    TOPICS_MAX,
    NewestOutputs,
    PendingWorkReader,
    WaitingFacts,
    pending_work_body,
    pending_work_partials,
)
from snapline.view.recovery_page import FATES_MAX, HistoryFacts, LineFacts, LinesFacts, recovery_body
from snapline.view.watch import FleetWatch, ViewCalls

# -- store at rest -----------------------------------------------------------------------------------------------------


class StoreAtRest:
    """Reads a store without a running fleet. The documents have the form that CLI commands print with `-o json`."""

    def __init__(self, location: str) -> None:
        """Open the store. Raise StoreError if no store exists at `location`."""
        self._store = Store.open(location)
        self._outputs = open_store(location)

    def listed(self) -> SnapshotList:
        """Return the output of `snapline snapshot list`."""
        return list_snapshots(self._store)

    def snapshot_at(self, snapshot: str) -> dict[str, object]:
        """Return the output of `snapline snapshot show`.

        Raise NotFoundError if the snapshot does not exist, and DamagedDataError if it is damaged.
        """
        document = show_document(
            self._store, snapshot, describe_state=describe_state, describe_message=describe_payload
        )
        return dict(document)

    def outside(self, last_epoch: int) -> WaitingFacts:
        """Return the external effects and the newest outputs in the store. Raise DamagedDataError if the data is damaged."""
        records: deque[Output | OutputsReverted] = deque(maxlen=LEDGER_RECORDS_MAX)
        count = 0
        for record in self._outputs.outputs(EFFECTS_TOPIC, message_type=EffectRecord):
            records.append(record)
            count += 1
        return WaitingFacts(
            outputs=self._newest(last_epoch), effects=fold(records), is_ledger_whole=count <= LEDGER_RECORDS_MAX
        )

    def _newest(self, last_epoch: int) -> NewestOutputs:
        """Return the newest outputs, searching further back in time until there are enough, like `newest_outputs`."""
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


SNAPSHOTS_MAX = 256
"""Largest number of snapshots in the list, which contains the newest snapshots. The history of epochs has the same limit."""

SNAPSHOT_COLUMNS = (
    *(("Epoch", ""), ("Taken", ""), ("Why", ""), ("Plan", "number"), ("Hosts", "number"), ("Agents", "number")),
    *(("States", "number"), ("In transit", "number"), ("Kept as", "wide")),
)


def store_body(listed: SnapshotList) -> Markup:
    """Draw the screen *Store* from the JSON output of `snapline snapshot list`."""
    newest = listed.snapshots[-1] if listed.snapshots else None
    about = [listed.store, *([newest.fleet, newest.protocol] if newest is not None else [])]
    title = tag("div", tag("h1", "Store"), tag("p", " · ".join(filter(None, about)), class_="quiet"), class_="title")
    shown = list(reversed(listed.snapshots[-SNAPSHOTS_MAX:]))
    summary = plural(len(listed.snapshots), "snapshot") + (
        f", the newest {SNAPSHOTS_MAX} are shown" if len(listed.snapshots) > SNAPSHOTS_MAX else ""
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
    body = (
        table(SNAPSHOT_COLUMNS, rows, label="Snapshots") if rows else tag("p", "It holds no snapshot.", class_="quiet")
    )
    return join([title, damage, fork, section("snapshots", summary, body)])


def _row(each: SnapshotSummary, listed: SnapshotList) -> Markup:
    name = tag("th", tag("a", each.epoch, href=f"/epochs/{each.epoch}"), scope="row")
    if each.damage:
        return tag(
            "tr",
            name,
            tag("td", f"cannot be read: {each.damage}", class_="wide bad", colspan=len(SNAPSHOT_COLUMNS) - 1),
        )
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


# -- static markup -----------------------------------------------------------------------------------------------------


_TAG = re.compile(r'<(/?)([a-zA-Z][a-zA-Z0-9]*)((?: [a-zA-Z-]+(?:="[^"<>]*")?)*)>')
_ATTRIBUTE = re.compile(r' ([a-zA-Z-]+)(?:="([^"<>]*)")?')
_ID = re.compile(r'<[^<>]* id="([^"<>]*)"')

_ELEMENTS = """
a article b br code dd details div dl dt h1 h2 h3 i li ol p pre section small span summary table tbody td th thead time tr ul
circle defs g line marker path polygon polyline rect svg text title tspan
"""
_ATTRIBUTES = """
class colspan datetime hidden open role rowspan scope tabindex title
cx cy d dx dy fill height points r rx ry transform width x x1 x2 y y1 y2 viewBox preserveAspectRatio text-anchor
stroke stroke-width stroke-dasharray markerHeight markerWidth orient refX refY
"""
ELEMENTS, ATTRIBUTES = frozenset(_ELEMENTS.split()), frozenset(_ATTRIBUTES.split())
"""Elements and attributes that are allowed in a file. Attributes `aria-…` and `id`, and attributes that refer to an id, are also
allowed."""

REMOVED_ELEMENTS = frozenset({"form"})
"""Elements that are removed from a file together with their content."""

REMOVED_PREFIXES = ("data-",)
"""Prefixes of attributes that are removed because only scripts read them."""

IDS = frozenset({"aria-labelledby", "aria-describedby"})
ARROWHEADS = frozenset({"marker-end", "marker-start"})

LinkTarget = Callable[[str], str | None]
"""Function that maps the address of a link to the id of the link's target in the file, or to None if the file has no such target."""


def ids_of(markup: Markup, screen: str) -> set[str]:
    """Return the HTML ids that a screen's elements have in the exported file."""
    return {f"{screen}-{unescape(id_)}" for id_ in _ID.findall(markup)}


def standing(markup: Markup, screen: str, place: LinkTarget, ids: Collection[str]) -> Markup:
    """Convert a screen to static markup. `place` finds the target of a link in the file, and `ids` contains all HTML ids in the file.

    Raises:
        ValueError: If the screen contains markup that the file may not contain.
    """
    return Markup("".join(_standing_parts(markup, screen, place, ids)))


def _standing_parts(markup: str, screen: str, place: LinkTarget, ids: Collection[str]) -> Iterator[str]:
    end, removed, moment = 0, "", ""
    links: list[str] = []
    for match in _TAG.finditer(markup):
        text, end = markup[end : match.start()], match.end()
        if "<" in text:
            raise ValueError(f"no markup of ours: {text[:80]!r}")
        closing, name, attributes = match.groups()
        if removed:
            removed = "" if closing and name == removed else removed
            continue
        yield moment or text
        moment = ""
        if name in REMOVED_ELEMENTS:
            removed = name
            continue
        if name not in ELEMENTS:
            raise ValueError(f"no element for a file: {name}")
        if closing:
            yield f"</{links.pop() if name == 'a' else name}>"
            continue
        kept = _attributes(attributes, screen)
        if name == "a":
            href = kept.pop("href", None)
            target = None if href is None else _target(href, screen, place, ids)
            links.append("span" if target is None else "a")
            kept |= {} if target is None else {"href": f"#{target}"}
            name = links[-1]
        if name == "time" and " data-age" in attributes:
            moment = escape(_moment(kept.get("datetime") or ""), quote=False)
        yield f"<{name}{''.join(_written(kept))}>"
    if "<" in markup[end:]:
        raise ValueError(f"no markup of ours: {markup[end : end + 80]!r}")
    yield markup[end:]


def _attributes(attributes: str, screen: str) -> dict[str, str | None]:
    """Return those attributes of a tag that are allowed. An attribute without a value has the value None."""
    kept: dict[str, str | None] = {}
    for match in _ATTRIBUTE.finditer(attributes):
        name, value = match[1], None if match[2] is None else unescape(match[2])
        if name.startswith(REMOVED_PREFIXES):
            continue
        if name == "id" or name in IDS:
            value = f"{screen}-{value}"
        elif name in ARROWHEADS:
            value = re.sub(r"^url\(#(.*)\)$", rf"url(#{screen}-\1)", value or "")
        elif name != "href" and name not in ATTRIBUTES and not name.startswith("aria-"):
            raise ValueError(f"no attribute for a file: {name}")
        kept[name] = value
    return kept


def _target(href: str, screen: str, place: LinkTarget, ids: Collection[str]) -> str | None:
    target = f"{screen}-{href[1:]}" if href.startswith("#") else place(href)
    return target if target in ids else None


def _moment(datetime: str) -> str:
    """Format a time like `2026-01-01 12:00:00.000`, since ages cannot be updated in a static file."""
    return datetime.replace("T", " ").removesuffix("+00:00")


def _written(attributes: dict[str, str | None]) -> Iterator[str]:
    for name, value in attributes.items():
        yield f" {name}" if value is None else f' {name}="{escape(value)}"'


# -- redaction ---------------------------------------------------------------------------------------------------------


KEPT = ("number", "sender", "receiver", "agent", "kind", "remaining_s", "entries")
"""Fields of timers, parked messages, dead letters and similar items that are not redacted. All other fields may be private."""

DIGITS = 12
"""Number of digits in a digest, which is enough to avoid accidental collisions within a file."""


class Redaction:
    """Redacts private contents in the exported data. Create one instance for each file."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def replacement_of(self, value: object) -> str:
        """Return the text that replaces `value`."""
        data = msgspec.json.encode(msgspec.to_builtins(value, str_keys=True), order="deterministic")
        digest = hmac.new(self._key, data, hashlib.sha256).hexdigest()[:DIGITS]
        return f"left out: {size(len(data))} of JSON, digest {digest}"

    def cut(self, cut: CutFacts, *, kept: int = 0, messages_kept: bool = False) -> CutFacts:
        """Redact a snapshot, except the contents of its first `kept` agents and, if `messages_kept` is set, of its messages."""
        agents = [each if number < kept else self._agent(each) for number, each in enumerate(cut.agents)]
        channels = cut.channels if messages_kept else tuple(self._channel(each) for each in cut.channels)
        return msgspec.structs.replace(cut, agents=tuple(agents), channels=channels)

    def waiting(self, facts: WaitingFacts) -> WaitingFacts:
        agents = tuple(
            msgspec.structs.replace(each, problem=self._text(each.problem), waits_for=self._text(each.waits_for))
            for each in facts.agents.agents
        )
        return msgspec.structs.replace(
            facts,
            agents=msgspec.structs.replace(facts.agents, agents=agents),
            outputs=self._outputs(facts.outputs),
            effects=self.effects(facts.effects),
        )

    def effects(self, effects: Iterable[Effect]) -> list[Effect]:
        """Redact the contents of external effects. Agents, names and outcomes are kept."""
        return [
            msgspec.structs.replace(
                each, key=self._text(each.key), arguments=self._text(each.arguments), result=self._text(each.result)
            )
            for each in effects
        ]

    def _text(self, text: str) -> str:
        return self.replacement_of(text) if text else ""

    def _agent(self, agent: CutAgent) -> CutAgent:
        state = agent.state if agent.is_unborn or agent.state is None else self.replacement_of(agent.state)
        turn = None if agent.durable_turn is None else self._item(agent.durable_turn)
        lists: dict[str, Sequence[Plain]] = {
            name: tuple(self._item(each) for each in getattr(agent, name))
            for name in ("outbox", "spawns", "timers", "put_off", "dead_letters")
        }
        return msgspec.structs.replace(agent, state=state, durable_turn=turn, **lists)

    def _item(self, item: Plain) -> Plain:
        kept = {name: item[name] for name in KEPT if name in item}
        rest = {name: value for name, value in item.items() if name not in kept}
        return {**kept, "content": self.replacement_of(rest)} if rest else kept

    def _channel(self, channel: CutChannel) -> CutChannel:
        messages = tuple(CutMessage(each.number, self.replacement_of(each.message)) for each in channel.in_transit)
        return msgspec.structs.replace(channel, in_transit=messages)

    def _outputs(self, newest: NewestOutputs) -> NewestOutputs:
        topics: dict[str, Sequence[Output]] = {
            topic: tuple(msgspec.structs.replace(each, message=self.replacement_of(each.message)) for each in outputs)
            for topic, outputs in newest.topics.items()
        }
        return msgspec.structs.replace(newest, topics=topics)


# -- screens -----------------------------------------------------------------------------------------------------------


SNAPSHOT = "snapshot"
"""Id of the snapshot's screen, to which other screens link."""

CUT_CHARACTERS_MAX = 8_000_000
"""Largest size of the snapshot's screen, in characters. A browser opens a screen of this size in a second or two, and bug trackers accept
such a file."""

RATE_S = 2.0
"""Time in seconds between the two reads of the fleet's state from which rates are computed. Hosts report their turns once a second."""

LEDGER_READS = 6
"""Largest number of reads of the effect ledger, each of at most 8 MiB. The limit keeps the export within some seconds."""

FAILURES = (SnaplineError, msgspec.ValidationError)


class ExportedScreen(msgspec.Struct, frozen=True):
    """One screen in the file.

    `id` is the prefix of the screen's HTML ids. `epoch` is the epoch of the snapshot that the screen shows, or 0 if it shows none.
    """

    id: str
    name: str
    body: Markup
    epoch: int = 0


class FleetExport:
    """Exports the screens of a running fleet."""

    def __init__(self, calls: ViewCalls, snapshot: str, withheld: Redaction | None) -> None:
        """Create an export of this fleet. `withheld` removes private contents. If `withheld` is None, private contents are included."""
        self._calls = calls
        self._snapshot = snapshot
        self._redactor = withheld
        self._watch = FleetWatch(calls)
        self._waiting = PendingWorkReader(calls, self._watch)

    async def screens(self) -> tuple[str, list[ExportedScreen]]:
        """Return the fleet's name and its screens.

        Raises:
            CoordinatorUnavailableError: If no coordinator reports the fleet's state.
        """
        try:
            return await self._screens()
        finally:
            await self._watch.close()

    async def _screens(self) -> tuple[str, list[ExportedScreen]]:
        first_s, facts = time.monotonic(), (await self._watch.now()).facts
        if facts is None:
            raise CoordinatorUnavailableError(self._watch.last.trouble)
        epochs = await _screen_or_reason("epochs", "Epochs", self._epochs)
        snapshot = await _screen_or_reason(SNAPSHOT, "Snapshot", self._cut)
        coordinators = await _screen_or_reason("coordinators", "Coordinators", self._coordinators)
        recovery = await _screen_or_reason("recovery", "Recovery", lambda: self._recovery(facts))
        waiting = await _screen_or_reason("waiting", "Waiting", self._pending_work)
        await asyncio.sleep(max(0.0, first_s + RATE_S - time.monotonic()))
        state = await self._watch.now()
        fleet = ExportedScreen("fleet", "Fleet", FleetScreen().body(state, AgentSearch()))
        return facts.fleet, [fleet, coordinators, epochs, snapshot, recovery, waiting]

    async def _coordinators(self) -> ExportedScreen:
        return ExportedScreen("coordinators", "Coordinators", coordinators_body(await self._calls.replicas()))

    async def _epochs(self) -> ExportedScreen:
        history = await self._calls.epoch_history()
        return ExportedScreen("epochs", "Epochs", no_history() if history is None else epochs_body(history))

    async def _cut(self) -> ExportedScreen:
        return cut_screen(cut_of(await self._calls.snapshot_at(self._snapshot)), self._redactor)

    async def _recovery(self, facts: FleetStatus) -> ExportedScreen:
        line = msgspec.convert(await self._calls.line_of(()), LineFacts)
        lines = msgspec.convert(await self._calls.lines_of_each(), LinesFacts)
        past = msgspec.convert(await self._calls.recoveries(), HistoryFacts)
        shown_lines = [each.line_epoch for each in past.recoveries[-FATES_MAX:]]
        effects: dict[int, list[Effect]] = {}
        for _ in range(LEDGER_READS if shown_lines else 0):
            effects = await self._waiting.open_at(shown_lines)
        if self._redactor is not None:
            effects = {epoch: self._redactor.effects(open_effects) for epoch, open_effects in effects.items()}
        agents = [each.agent for each in self._watch.last.agents]
        body = recovery_body(line, lines, past, [host.host for host in facts.hosts], agents, effects, Targets())
        return ExportedScreen("recovery", "Recovery", body)

    async def _pending_work(self) -> ExportedScreen:
        for _ in range(LEDGER_READS):
            await self._waiting.open_at(())
        facts = msgspec.structs.replace(await self._waiting.facts(), targets=Targets())
        return ExportedScreen(
            "waiting", "Waiting", pending_work_body(facts if self._redactor is None else self._redactor.waiting(facts))
        )


async def store_screens(
    store: StoreAtRest, snapshot: str, withheld: Redaction | None
) -> tuple[str, list[ExportedScreen]]:
    """Return the fleet's name and the screens for a store whose fleet is not running.

    Raises:
        StoreError: If the store is missing or unreadable.
    """
    listed = store.listed()
    name = next((each.fleet for each in reversed(listed.snapshots) if each.fleet), "")

    async def cut() -> ExportedScreen:
        return cut_screen(cut_of(store.snapshot_at(snapshot)), withheld)

    async def outside() -> ExportedScreen:
        facts = store.outside(listed.snapshots[-1].epoch if listed.snapshots else 0)
        pieces = pending_work_partials(facts if withheld is None else withheld.waiting(facts))
        notice = _sentence(
            "What waits with agents only their hosts know. Turns in their middle, timers and messages stand in the snapshot."
        )
        parts = [piece.html for piece in pieces if piece.id in ("effects", "outputs")]
        return ExportedScreen("waiting", "Waiting", join([_title("Waiting"), notice, *parts]))

    return name, [
        ExportedScreen("store", "Store", store_body(listed)),
        _missing("epochs", "Epochs", NO_HISTORY),
        await _screen_or_reason(SNAPSHOT, "Snapshot", cut),
        _missing("recovery", "Recovery", NO_RECOVERIES),
        await _screen_or_reason("waiting", "Waiting", outside),
    ]


NO_HISTORY = "How epochs ended stands in the coordinator's log, which a store at rest does not have: export a fleet that runs. The store's own snapshots are above."
NO_RECOVERIES = (
    "What a failure would cost is asked of a fleet that runs: this one goes on from its latest complete epoch, with all its agents. "
    "The recoveries that there were stand in the coordinator's log, which a store at rest does not have."
)


def cut_screen(cut: CutFacts, withheld: Redaction | None) -> ExportedScreen:
    """Draw a snapshot's screen with as much content as the size limit permits."""
    heading = _title("Snapshot")
    if withheld is not None:
        return ExportedScreen(SNAPSHOT, "Snapshot", cut_body(withheld.cut(cut), CutSearch()), cut.epoch)
    for kept, has_messages in _parts(min(len(cut.agents), ROWS_MAX)):
        shown = (
            cut
            if kept >= min(len(cut.agents), ROWS_MAX)
            else Redaction().cut(cut, kept=kept, messages_kept=has_messages)
        )
        body = cut_body(shown, CutSearch())
        if len(body) <= CUT_CHARACTERS_MAX:
            strip = None if shown is cut else _too_large(kept, has_messages=has_messages)
            return ExportedScreen(SNAPSHOT, "Snapshot", join([strip, body]), cut.epoch)
    return ExportedScreen(
        SNAPSHOT,
        "Snapshot",
        join([heading, _sentence("It is too large for a file: `snapline snapshot export` copies it.")]),
        cut.epoch,
    )


def _parts(agents: int) -> Iterator[tuple[int, bool]]:
    """Yield how much content to show, in decreasing amounts. Each result is the number of agents whose contents are shown, and whether the
    contents of messages are shown."""
    yield agents, True
    while agents:
        agents //= 2
        yield agents, True
    yield 0, False


def _too_large(kept: int, *, has_messages: bool) -> Markup:
    omitted = f"all but the first {plural(kept, 'agent')}" if kept else "agents"
    omission = f"Contents of {omitted} are left out" if has_messages else "Contents are left out"
    return _sentence(
        f"{omission}: this screen would be larger than {size(CUT_CHARACTERS_MAX)}. `snapline snapshot show` has them."
    )


async def _screen_or_reason(id: str, name: str, make: Callable[[], Awaitable[ExportedScreen]]) -> ExportedScreen:
    """Call `make` to draw a screen. If `make` fails, return a screen that states the reason."""
    try:
        return await make()
    except FAILURES as error:
        return _missing(id, name, f"This could not be had: {error}.")


def _missing(id: str, name: str, why: str) -> ExportedScreen:
    return ExportedScreen(id, name, join([_title(name), _sentence(why)]))


def _title(name: str) -> Markup:
    return tag("div", tag("h1", name), class_="title")


def _sentence(text: str) -> Markup:
    return tag("p", text, class_="strip warn")


# -- file --------------------------------------------------------------------------------------------------------------


MORE_STYLE = """
/* a file: screens one below the other */
article { scroll-margin-top: 56px; padding-bottom: 24px; margin-bottom: 40px; border-bottom: 1px solid var(--edge); }
article:last-child { border-bottom: 0; }
[id] { scroll-margin-top: 64px; }
.about { margin: 4px 0 28px; color: var(--quiet); }
"""


def export_page(fleet: str, screens: Sequence[ExportedScreen], about: str) -> Markup:
    """Return the whole HTML file. `about` describes the time, source and content of the export in a sentence or two."""
    shown = epoch_of(screens)
    ids = {each.id for each in screens}.union(*(ids_of(each.body, each.id) for each in screens))

    def place(href: str) -> str | None:
        return _place(href, shown)

    articles = [
        tag("article", standing(each.body, each.id, place, ids), id=each.id, aria_label=each.name) for each in screens
    ]
    links = [tag("a", each.name, href=f"#{each.id}") for each in screens]
    top = tag("header", tag("span", "snapline", class_="brand"), tag("nav", *links, aria_label="Screens"), class_="top")
    main = tag("main", tag("p", about, class_="about"), *articles, id="main", tabindex="-1")
    body = tag("body", tag("a", "Skip to content", href="#main", class_="skip"), top, main)
    return join([Markup("<!DOCTYPE html>\n"), tag("html", _head(fleet), body, lang="en"), Markup("\n")])


def epoch_of(screens: Sequence[ExportedScreen]) -> int:
    """Return the epoch of the exported snapshot, or 0 if there is none."""
    return max([each.epoch for each in screens if each.id == SNAPSHOT], default=0)


def _head(fleet: str) -> Markup:
    style = Markup((resources.files(__package__) / "static" / "view.css").read_text(encoding="utf-8") + MORE_STYLE)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{fleet or 'a fleet'} · snapline"),
        tag("style", style),
    )


def _place(href: str, epoch: int) -> str | None:
    """Return the HTML id in the file for a link to this address of the view, or None if the file lacks the target."""
    parts = urlsplit(href)
    match parts.path.split("/"):
        case ["", ""]:
            return f"fleet-{parts.fragment}" if parts.fragment else "fleet"
        case ["", "epochs", number] if number == str(epoch):
            return SNAPSHOT
        case ["", "agents", agent]:
            return f"{SNAPSHOT}-agent-{unquote(agent)}"
        case ["", screen]:
            return screen
    return None


def check_free(path: Path, *, is_forced: bool) -> None:
    """Raise UsageError if a file exists at `path`, unless `is_forced` is set."""
    if path.exists() and not is_forced:
        raise UsageError(f"{path} is there already: give another name, or --force")


def write_file(path: Path, page: str, *, is_forced: bool) -> int:
    """Write the file atomically, readable only by its owner. Return the file's size in bytes.

    Raises:
        UsageError: If the file already exists and `is_forced` is False.
        OSError: If the file cannot be written.
    """
    data = page.encode("utf-8", "replace")
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_forced:
            os.replace(scratch, path)
        else:
            os.link(scratch, path)  # fails if the file exists
    except FileExistsError as error:
        raise UsageError(f"{path} is there already: give another name, or --force") from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()
    return len(data)
