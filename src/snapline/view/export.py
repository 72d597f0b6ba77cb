"""Content of a file for a bug report: the available screens of a running fleet, or of a store at rest.

The pages are those of the view. A sentence replaces an unavailable page, so one failure does not affect the others. A fleet that does not answer
at all is an error: no file is written.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from snapline.agent_runtime.effect_ledger import Effect
from snapline.errors import CoordinatorUnavailableError, SnaplineError
from snapline.view.cut_page import ROWS_MAX, CutFacts, CutSearch, cut_body, cut_of
from snapline.view.epochs_page import epochs_body, no_history
from snapline.view.facts import FleetFacts, ViewCalls
from snapline.view.fleet_page import AgentSearch, FleetScreen, coordinators_body
from snapline.view.formatting import plural, size
from snapline.view.markup import Markup, join, tag
from snapline.view.page_frame import Targets
from snapline.view.pending_work_page import PendingWorkReader, pending_work_body, pending_work_partials
from snapline.view.recovery_page import FATES_MAX, HistoryFacts, LineFacts, LinesFacts, recovery_body
from snapline.view.redaction import Redaction
from snapline.view.stored_snapshots import StoreAtRest, store_body
from snapline.view.watch import FleetWatch

SNAPSHOT = "snapshot"
"""Id of the snapshot's screen, to which others link."""

CUT_CHARACTERS_MAX = 8_000_000
"""Largest size of the snapshot's screen: a browser opens it in a second or two, and bug trackers accept such a file."""

RATE_S = 2.0
"""Time between two reads of the fleet's state: hosts report their turns once a second."""

LEDGER_READS = 6
"""Largest number of reads of the effect ledger, each of at most 8 MiB: the requester waits some seconds for the file."""

FAILURES = (SnaplineError, msgspec.ValidationError)


class ExportedScreen(msgspec.Struct, frozen=True):
    """One screen of the file. `id`: prefix of the ids in it. `epoch`: epoch of the shown snapshot, or 0."""

    id: str
    name: str
    body: Markup
    epoch: int = 0


class FleetExport:
    """The screens of a running fleet."""

    def __init__(self, calls: ViewCalls, snapshot: str, withheld: Redaction | None) -> None:
        """`withheld`: removes contents; None: the file includes them."""
        self._calls = calls
        self._snapshot = snapshot
        self._redactor = withheld
        self._watch = FleetWatch(calls)
        self._waiting = PendingWorkReader(calls, self._watch)

    async def screens(self) -> tuple[str, list[ExportedScreen]]:
        """Return the fleet's name and its screens.

        Raises:
            CoordinatorUnavailableError: the fleet does not report its state.
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

    async def _recovery(self, facts: FleetFacts) -> ExportedScreen:
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
    """Return the fleet's name and the screens of a store without a running coordinator.

    Raises:
        StoreError: the store is missing or cannot be read.
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
    """Draw one snapshot, as far as the size limit allows."""
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
    """Yield ever smaller numbers of agents shown with contents, and whether messages are shown with contents."""
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
    """Return a screen, or one with the reason why it is unavailable."""
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
