"""External output of a fleet, read in parts: the ledger of effects, and the newest outputs of each topic.

Memory does not grow with the fleet's age: only the newest records of the ledger are kept, and each read fetches a limited number of pages.
So a long ledger is complete only after several reads; `is_whole` tells.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from snapline.agent_runtime.effect_ledger import Effect, fold, open_at
from snapline.agent_runtime.output_reading import MessageReader, Output, OutputsReverted
from snapline.client.outputs import items_of
from snapline.errors import NotFoundError, UsageError
from snapline.messages.effect_records import EFFECTS_TOPIC, EffectRecord
from snapline.messages.outputs import ReadOutputsReply

LEDGER_RECORDS_MAX = 20_000
"""Largest number of records of the ledger: folding them takes a tenth of a second."""

PAGES_MAX = 8
"""Largest number of pages in one read, of a MiB or 5,000 outputs each: a page takes some ten milliseconds."""

SEARCH_EPOCHS_FIRST, SEARCH_EPOCHS_STEP = 2, 8
"""Search for the newest outputs: the last two epochs, then 16, 128, 1024 …, until there are enough outputs."""

OUTPUTS_ENOUGH = 100
"""Number of outputs among which the newest of each topic are searched."""

NEWEST_MAX, TOPICS_MAX = 10, 50
"""Largest number of outputs of a topic, and of topics."""


class OutputCalls(Protocol):
    """Calls that this module makes."""

    async def outputs_page(self, after: str, topic: str = ...) -> ReadOutputsReply: ...


class EffectLedger:
    """The newest records of the ledger of effects.

    Attributes:
        is_whole: the whole ledger has been read.
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
        """Read the next pages. SnaplineError."""
        for _ in range(PAGES_MAX):
            try:
                page = await calls.outputs_page(self._cursor, EFFECTS_TOPIC)
            except NotFoundError:  # the next outputs were deleted: continue with the oldest kept ones
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
        """Return the effects with their fates, in the order of their requests."""
        if self._folded is None:
            self._folded = fold(self._records)
        return self._folded

    def open_at(self, epochs: Sequence[int]) -> dict[int, list[Effect]]:
        """Return epoch → the effects that were open in its cut, with their current fates."""
        for epoch in epochs:
            if epoch not in self._open:
                self._open[epoch] = open_at(self._records, epoch)
        return {epoch: self._open[epoch] for epoch in epochs}


class NewestOutputs(msgspec.Struct, frozen=True):
    """Newest outputs.

    Attributes:
        topics: topic → its newest outputs, oldest first.
        counts: topic → number of outputs found.
        since: the first epoch searched; 0: all kept epochs were searched.
        is_cut: the search stopped early, at the limit of one read.
    """

    topics: Mapping[str, Sequence[Output]] = {}
    counts: Mapping[str, int] = {}
    since: int = 0
    is_cut: bool = False


async def newest_outputs(calls: OutputCalls, last_epoch: int) -> NewestOutputs:
    """Return the newest outputs that agents have given, if any are kept. SnaplineError."""
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
            break  # no output is that new, or the next ones were deleted: search further back
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
