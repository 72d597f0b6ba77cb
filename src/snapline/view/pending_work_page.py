"""Draw the screen *Waiting*.

The screen *Waiting* shows what agents ask people, unfinished durable turns, inputs, outputs and their consumers, effects and their outcomes, and dead letters.

The content of the screen is read once for all viewers, at most every few seconds. The ledger of external effects and the newest outputs of
each topic are read in parts. Memory use does not grow with the fleet's age, because only the ledger's newest records are kept, and each
read fetches a limited number of pages. So a long ledger is complete only after several reads. `is_whole` is then true.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from snapline.agent_runtime.effect_ledger import UNSETTLED, Effect, fold, open_at, with_standing
from snapline.agent_runtime.message_encoding import MessageReader, Output, OutputsReverted
from snapline.client.output_reader import items_of
from snapline.errors import NotFoundError, UsageError
from snapline.messages.answers import Consumer, ReadOutputsReply
from snapline.messages.approvals import OpenApproval
from snapline.messages.client_requests import WaitingAgent, WaitingAgents
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord, UnfinishedEffect
from snapline.messages.status import FleetStatus
from snapline.storage.outputs.output_record import parse_cursor
from snapline.view.display_text import NOTHING, Tone, age, count, pill, plural, seconds, size, tone_of
from snapline.view.markup import Child, Markup, join, shown, tag
from snapline.view.page_elements import (
    RENDER_PERIOD_S,
    Partial,
    Targets,
    action_link,
    approval_details,
    leaf,
    notices,
    section,
    table,
    tree,
)
from snapline.view.watch import FleetWatch, ViewCalls

# -- ledger ------------------------------------------------------------------------------------------------------------


LEDGER_RECORDS_MAX = 20_000
"""Largest number of ledger records that are kept. Computing the effects from this many records takes a tenth of a second."""

PAGES_MAX = 8
"""Largest number of pages in one read. A page has at most 1 MiB or 5,000 outputs, and reading it takes about ten milliseconds."""

SEARCH_EPOCHS_FIRST, SEARCH_EPOCHS_STEP = 2, 8
"""First search range for the newest outputs, in epochs, and the factor by which the range grows. The search covers 2, 16, 128, 1024 …
epochs until it has found enough outputs."""

OUTPUTS_ENOUGH = 100
"""Number of found outputs at which the search for the newest outputs of each topic stops."""

NEWEST_MAX, TOPICS_MAX = 10, 50
"""Largest number of outputs shown per topic, and largest number of topics shown."""


class OutputCalls(Protocol):
    """Requests to the fleet that this module needs."""

    async def outputs_page(self, after: str, topic: str = ...) -> ReadOutputsReply: ...


class EffectLedger:
    """Keeps the newest records in the ledger of external effects.

    Attributes:
        is_whole: whether the ledger has been read completely.
    """

    def __init__(self) -> None:
        self.is_whole = False
        self._records: deque[Output | OutputsReverted] = deque(maxlen=LEDGER_RECORDS_MAX)
        self._cursor = ""
        self._reader = MessageReader(EffectRecord, "message_type", "the output")
        self._folded: list[Effect] | None = None
        self._open: dict[int, list[Effect]] = {}
        """Cached results of `effects` and `open_at` for the current records."""

    async def catch_up(self, calls: OutputCalls) -> None:
        """Read further pages of the ledger. Raise SnaplineError if the fleet does not respond."""
        for _ in range(PAGES_MAX):
            try:
                page = await calls.outputs_page(self._cursor, EFFECTS_TOPIC)
            except NotFoundError:  # the next outputs were deleted: continue with the oldest outputs that are kept
                self._cursor = ""
                self._records.clear()
                self._forget()
                continue
            for release in page.releases:
                self._records.extend(list(items_of(release, self._reader)))
                self._forget()
            self.is_whole = page.cursor == self._cursor and not page.releases
            self._cursor = page.cursor
            if self.is_whole:
                return

    def _forget(self) -> None:
        self._folded = None
        self._open.clear()

    def effects(self) -> list[Effect]:
        """Return the external effects and their outcomes, in the order in which they were requested."""
        if self._folded is None:
            self._folded = fold(self._records)
        return self._folded

    def open_at(self, epochs: Sequence[int]) -> dict[int, list[Effect]]:
        """Return, for each epoch, the external effects that were unfinished in its cut, with their current outcomes."""
        for epoch in epochs:
            if epoch not in self._open:
                self._open[epoch] = open_at(self._records, epoch)
        return {epoch: self._open[epoch] for epoch in epochs}


class NewestOutputs(msgspec.Struct, frozen=True):
    """The newest outputs of each topic.

    Attributes:
        topics: newest outputs of each topic, oldest first.
        counts: number of outputs found for each topic.
        since: first epoch that was searched, or 0 if all kept epochs were searched.
        is_cut: whether the search reached its limit and stopped early.
    """

    topics: Mapping[str, Sequence[Output]] = {}
    counts: Mapping[str, int] = {}
    since: int = 0
    is_cut: bool = False


async def newest_outputs(calls: OutputCalls, last_epoch: int) -> NewestOutputs:
    """Return the newest outputs of agents that are still kept. Raise SnaplineError if the fleet does not respond."""
    epochs_back, before = SEARCH_EPOCHS_FIRST, NewestOutputs()
    while True:
        newest = await _outputs_since(calls, max(0, last_epoch - epochs_back))
        if newest.is_cut and before.counts:
            return before
        if newest.is_cut or not newest.since or sum(newest.counts.values()) >= OUTPUTS_ENOUGH:
            return newest
        epochs_back, before = epochs_back * SEARCH_EPOCHS_STEP, newest


async def _outputs_since(calls: OutputCalls, epoch: int) -> NewestOutputs:
    reader, topics, counts = (
        MessageReader(None, "message_type", "the output"),
        dict[str, deque[Output]](),
        Counter[str](),
    )
    cursor, is_cut = f"{epoch}.0" if epoch else "", True
    for _ in range(PAGES_MAX):
        try:
            page = await calls.outputs_page(cursor)
        except (UsageError, NotFoundError):
            if not cursor:
                raise
            break  # no output is that new, or the next outputs were deleted: search further back
        for outputs in [item for release in page.releases for item in items_of(release, reader)]:
            if isinstance(outputs, Output) and (outputs.topic in topics or len(topics) < TOPICS_MAX):
                topics.setdefault(outputs.topic, deque(maxlen=NEWEST_MAX)).append(outputs)
                counts[outputs.topic] += 1
        is_cut, cursor = page.cursor != cursor, page.cursor
        if not is_cut:
            break
    return NewestOutputs(
        {topic: tuple(outputs) for topic, outputs in topics.items()}, counts, epoch, is_cut and bool(counts)
    )


# -- page --------------------------------------------------------------------------------------------------------------


ROWS_MAX = 100
"""Largest number of rows in each table. The rows that most need attention come first."""

NODES_MAX = 40
"""Largest number of values that the page shows from one output."""

WORDS_SHOWN = 300
"""Largest number of characters that the page shows of an effect's arguments, and of its result."""

TURN_COLUMNS = (
    *(("Agent", ""), ("Host", ""), ("Begun for", ""), ("Waits for", "wide"), ("Since", "number")),
    *(("Steps", "number"), ("Deferred", "number")),
)
APPROVAL_COLUMNS = (
    *(("Agent", ""), ("Host", ""), ("Asks", "wide")),
    *(("Since", "number"), ("Expires in", "number"), ("Answer", "")),
)
OUTPUT_COLUMNS = (("Topic", ""), ("Agent", ""), ("Given", ""), ("Epoch", "number"), ("Cursor", ""), ("Message", "wide"))
EFFECT_COLUMNS = (
    *(("Agent", ""), ("Key", ""), ("Effect", ""), ("What became of it", ""), ("Asked", "")),
    *(("Arguments", "wide"), ("Result", "wide")),
)


class WaitingFacts(msgspec.Struct, frozen=True):
    """The content of the screen *Waiting*.

    Attributes:
        fleet: state of the fleet, or None if the fleet has not responded.
        is_ledger_whole: whether the ledger has been read completely, so that `effects` is complete.
        targets: agents that have their own page.
    """

    fleet: FleetStatus | None = None
    agents: WaitingAgents = WaitingAgents()
    outputs: NewestOutputs = NewestOutputs()
    consumers: tuple[Consumer, ...] = ()
    effects: Sequence[Effect] = ()
    is_ledger_whole: bool = True
    approvals: Sequence[OpenApproval] = ()
    may_answer: bool = False
    targets: Targets = Targets()


def pending_work_body(facts: WaitingFacts) -> Markup:
    """Draw the screen *Waiting*."""
    return join(
        [tag("div", tag("h1", "Waiting"), class_="title"), notices(), *[x.html for x in pending_work_partials(facts)]]
    )


def pending_work_partials(facts: WaitingFacts) -> list[Partial]:
    """Return the elements of the screen that may change while it is shown."""
    return [
        Partial("figures", _figures(facts)),
        Partial("approvals", _approvals(facts)),
        Partial("turns", _turns(facts.agents, facts.targets)),
        Partial("inputs", _inputs(facts.agents.agents, facts.targets)),
        Partial("effects", _effects(facts)),
        Partial("outputs", _outputs(facts)),
        Partial("letters", _dead_letters(facts.agents.agents, facts.targets)),
    ]


# -- head ----------------------------------------------------------------------------------------------------------------


def _figures(facts: WaitingFacts) -> Markup:
    fleet = facts.fleet or FleetStatus()
    turns = sum([bool(each.turn) for each in facts.agents.agents])
    stuck = sum([bool(each.problem) for each in facts.agents.agents])
    fates = Counter(each.fate for each in facts.effects)
    dead_letters = fleet.total("dead_letters")
    tiles: tuple[tuple[str, str, str, Tone], ...] = (
        (
            "Durable turns",
            count(turns),
            f"in their middle; {stuck:,} cannot go on",
            tone_of("concern", "turn") if stuck else "plain",
        ),
        ("Inputs waiting", count(fleet.total("inputs_waiting")), "taken, and not consumed yet", "plain"),
        (
            "Outputs waiting",
            count(fleet.total("outputs_waiting")),
            f"for a snapshot; {size(fleet.total('output_bytes_waiting'))}",
            "plain",
        ),
        (
            "Effects in doubt",
            count(fates["in doubt"] + fates["needs people"]),
            f"need people: {fates['needs people']:,}",
            tone_of("effect", "needs people") if fates["needs people"] else "plain",
        ),
        ("Dead letters", count(dead_letters), "", tone_of("agent", "dead letters") if dead_letters else "plain"),
    )
    return tag("dl", [_figure(*tile) for tile in tiles], id="figures", class_="figures")


def _figure(name: str, value: str, more: str, tone: Tone) -> Markup:
    return tag("div", tag("dt", name), tag("dd", value, class_=tone), tag("dd", more, class_="more"))


def _agent(agent: str, targets: Targets) -> Markup:
    return tag("th", targets.agent(agent), scope="row")


def _number(value: int) -> Markup:
    return tag("td", count(value), class_="number")


def _more(total: int) -> Markup | None:
    return tag("p", f"and {total - ROWS_MAX:,} more", class_="quiet") if total > ROWS_MAX else None


def _nothing(text: str) -> Markup:
    return tag("p", text, class_="quiet")


# -- agents --------------------------------------------------------------------------------------------------------------


def _turns(waiting: WaitingAgents, targets: Targets) -> Markup:
    unfinished = sorted([x for x in waiting.agents if x.turn], key=lambda each: (not each.problem, -each.waits_s))
    rows = [_turn(each, targets) for each in unfinished[:ROWS_MAX]]
    body = table(TURN_COLUMNS, rows, label="Durable turns") if rows else _nothing("No durable turn is in its middle.")
    silent = f"Not heard in time: {', '.join(waiting.silent_hosts)}." if waiting.silent_hosts else ""
    omitted = f"Hosts have left out {plural(waiting.more, 'agent')} with which something waits." if waiting.more else ""
    strips = [tag("p", each, class_="strip warn") for each in (silent, omitted) if each]
    return section("turns", "Durable turns", strips, body, _more(len(unfinished)))


def _turn(each: WaitingAgent, targets: Targets) -> Markup:
    waits: Child = each.waits_for or "goes on"
    if each.problem:
        waits = [tag("span", "suspended", class_=f"pill {tone_of('concern', 'turn')}"), " ", each.problem]
    since = seconds(each.waits_s) if each.waits_for else NOTHING
    cells = [tag("td", each.host), tag("td", f"{each.turn} from {each.sender}"), tag("td", waits, class_="wide")]
    numbers = [_number(each.steps), _number(each.put_off)]
    return tag("tr", _agent(each.agent, targets), cells, tag("td", since, class_="number"), numbers)


def _approvals(facts: WaitingFacts) -> Markup:
    rows = [_approval(each, facts) for each in facts.approvals[:ROWS_MAX]]
    body = table(APPROVAL_COLUMNS, rows, label="Approvals") if rows else _nothing("No agent asks people.")
    return section("approvals", "Approvals", body, _more(len(facts.approvals)))


def _approval(each: OpenApproval, facts: WaitingFacts) -> Markup:
    answers: list[Child] = []
    if facts.may_answer:
        answers = [action_link("grant", "Grant", id=each.id), " ", action_link("deny", "Deny", id=each.id)]
    return tag(
        "tr",
        _agent(each.agent, facts.targets),
        tag("td", each.host),
        tag("td", each.title, approval_details(each.details), class_="wide"),
        tag("td", seconds(each.asked_s), class_="number"),
        tag("td", NOTHING if each.expires_s is None else seconds(each.expires_s), class_="number"),
        tag("td", answers),
    )


def _inputs(agents: Sequence[WaitingAgent], targets: Targets) -> Markup:
    waiting = sorted([x for x in agents if x.inputs], key=lambda each: -each.inputs)
    rows = [tag("tr", _agent(x.agent, targets), tag("td", x.host), _number(x.inputs)) for x in waiting[:ROWS_MAX]]
    columns = (("Agent", ""), ("Host", ""), ("Inputs", "number"))
    body = table(columns, rows, label="Inputs that wait") if rows else _nothing("No input waits.")
    return section("inputs", "Inputs", body, _more(len(waiting)))


def _dead_letters(agents: Sequence[WaitingAgent], targets: Targets) -> Markup:
    receivers = sorted([x for x in agents if x.dead_letters], key=lambda each: -each.dead_letters)
    rows = [
        tag("tr", _agent(x.agent, targets), tag("td", x.host), _number(x.dead_letters)) for x in receivers[:ROWS_MAX]
    ]
    columns = (("Agent", ""), ("Host", ""), ("Dead letters", "number"))
    body = table(columns, rows, label="Dead letters") if rows else _nothing("There are none.")
    return section("letters", "Dead letters", body, _more(len(receivers)))


# -- external -----------------------------------------------------------------------------------------------------------


def _effects(facts: WaitingFacts) -> Markup:
    fates = Counter(each.fate for each in facts.effects)
    pills = [pill("effect", fate, f": {number:,}") for fate, number in fates.most_common()]
    order = {fate: index for index, fate in enumerate(UNSETTLED)}
    effects = sorted(facts.effects, key=lambda each: (order.get(each.fate, len(order)), -each.asked_ns))
    rows = [effect_row(each, facts.targets) for each in effects[:ROWS_MAX]]
    body = table(EFFECT_COLUMNS, rows, label="Effects") if rows else _nothing("Agents have done nothing outside.")
    part = f"The ledger is long: only a part of it has been read so far, and of it the newest {LEDGER_RECORDS_MAX:,} words."
    strip = None if facts.is_ledger_whole else tag("p", part, class_="strip warn")
    return section("effects", "Effects", strip, tag("p", *join_with_space(pills)), body, _more(len(effects)))


def join_with_space(parts: Sequence[Markup]) -> list[Child]:
    """Join the parts with spaces at which a line may break."""
    return [each for part in parts for each in (part, " ")]


def effect_row(each: Effect, targets: Targets) -> Markup:
    """Draw an external effect as a row of the table with the columns `EFFECT_COLUMNS`."""
    key = each.key if each.generation == 1 else f"{each.key}#{each.generation}"
    about = [
        tag("td", key),
        tag("td", each.name),
        tag("td", pill("effect", each.fate)),
        tag("td", age(each.asked_ns / 1e9)),
    ]
    text_cells = [tag("td", shown(text, WORDS_SHOWN), class_="wide") for text in (each.arguments, each.result)]
    return tag("tr", _agent(each.agent, targets), about, text_cells)


def _outputs(facts: WaitingFacts) -> Markup:
    newest = facts.outputs
    rows = [_output(each, facts.targets) for _, outputs in sorted(newest.topics.items()) for each in reversed(outputs)]
    since = f"epoch {newest.since} on" if newest.since else "the oldest that are kept on"
    summary = ", ".join([f"{topic}: {number:,}" for topic, number in sorted(newest.counts.items())])
    about = f"From {since} ({summary}); of each topic the newest {NEWEST_MAX} of them." if summary else ""
    cut = "There are more of them than a look reads: the newest are not among these." if newest.is_cut else ""
    body = (
        table(OUTPUT_COLUMNS, rows, label="Outputs") if rows else _nothing("Agents have given nothing to the outside.")
    )
    strip = tag("p", cut, class_="strip warn") if cut else None
    return section(
        "outputs", "Outputs", tag("p", about, class_="quiet") if about else None, strip, body, _consumers(facts)
    )


def _output(each: Output, targets: Targets) -> Markup:
    match each.message:
        case {"type": str() as name, "fields": dict() as fields}:
            value: Child = [tag("b", name), tree(fields, nodes_max=NODES_MAX)]
        case other:
            value = leaf(other)
    about = [
        tag("td", targets.agent(each.agent)),
        tag("td", age(each.emitted_ns / 1e9)),
    ]
    where = [_number(each.epoch), tag("td", tag("code", each.cursor))]
    return tag("tr", tag("th", each.topic, scope="row"), about, where, tag("td", value, class_="wide"))


def _consumers(facts: WaitingFacts) -> Markup | None:
    if not facts.consumers:
        return None
    rows = [
        tag(
            "tr",
            tag("th", each.name, scope="row"),
            tag("td", tag("code", each.cursor or "at the beginning")),
            tag("td", age(each.acknowledged_ns / 1e9)),
            tag("td", _behind(each, facts.outputs), class_="number"),
        )
        for each in facts.consumers[:ROWS_MAX]
    ]
    columns = (("Consumer", ""), ("Has had all up to", ""), ("Said", ""), ("Outputs since", "number"))
    return join([tag("h3", "Who reads them"), table(columns, rows, label="Consumers"), _more(len(facts.consumers))])


def _behind(consumer: Consumer, newest: NewestOutputs) -> str:
    """Return how many of the shown outputs the consumer has not read. Append "or more" if there may be further unread outputs."""
    position = parse_cursor(consumer.cursor)
    missing, is_more = 0, position.epoch < newest.since
    for topic, outputs in newest.topics.items():
        late = [parse_cursor(each.cursor) > position for each in outputs]
        missing += sum(late)
        is_more |= all(late) and len(outputs) < newest.counts[topic]
    return f"{missing:,} or more" if is_more else count(missing)


# -- reader ------------------------------------------------------------------------------------------------------------


class PendingWorkReader:
    """Reads the content of the screen *Waiting* and caches it. Each instance may be used from only one event loop."""

    def __init__(
        self, calls: ViewCalls, watch: FleetWatch, may_answer: Callable[[FleetStatus | None], bool] = lambda _: False
    ) -> None:
        """`may_answer` returns whether this view may answer approvals."""
        self._calls = calls
        self._watch = watch
        self._may_answer = may_answer
        self._ledger = EffectLedger()
        self._facts = WaitingFacts()
        self._asked_s = float("-inf")
        self._asking = asyncio.Lock()

    async def facts(self) -> WaitingFacts:
        """Return the content, which is at most one stream period old. Raise SnaplineError if the fleet does not respond."""
        async with self._asking:
            if time.monotonic() - self._asked_s >= RENDER_PERIOD_S:
                self._facts = await self._ask()
                self._asked_s = time.monotonic()
        return self._facts

    async def open_at(self, epochs: Sequence[int]) -> dict[int, list[Effect]]:
        """Return, for each epoch, the external effects that were unfinished in its cut, with their current outcomes.

        Raise SnaplineError if the fleet does not respond.
        """
        async with self._asking:
            await self._ledger.catch_up(self._calls)
            return await asyncio.to_thread(self._ledger.open_at, epochs)

    async def _ask(self) -> WaitingFacts:
        state = await self._watch.now()
        fleet, waiting = state.facts, await self._calls.waiting()
        await self._ledger.catch_up(self._calls)
        effects_in_doubt = msgspec.convert(waiting.get("effects", []), list[UnfinishedEffect])
        agents = msgspec.convert(waiting, WaitingAgents)
        with_pages = [*[each.agent for each in state.agents], *[each.agent for each in agents.agents]]
        return WaitingFacts(
            fleet=fleet,
            agents=agents,
            outputs=await newest_outputs(self._calls, 0 if fleet is None else fleet.last_complete_epoch),
            consumers=(await self._calls.consumers()).consumers,
            effects=with_standing(await asyncio.to_thread(self._ledger.effects), effects_in_doubt),
            is_ledger_whole=self._ledger.is_whole,
            approvals=msgspec.convert(waiting.get("approvals", []), list[OpenApproval]),
            may_answer=self._may_answer(fleet),
            targets=Targets(agents=frozenset(with_pages)),
        )
