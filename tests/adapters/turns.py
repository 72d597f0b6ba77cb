"""A durable turn that runs an SDK's agent, without a fleet: steps and effects are really run, and calls are answered."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.agent_runtime.test_durable import SEED, Clock

from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import DONE, FAILED, SegmentEnd, TurnJournal, encode_error, encode_result
from snapline.agent_runtime.message_encoding import encode_message
from snapline.storage.packs.checkpoint import JournalEntry, SavedTurn

Answer = Callable[[JournalEntry], Any]


class Turn:
    """`asked`: the requests of each round. `reply`: to all calls. `answer`: gives the results of all requests, none of which is then run."""

    def __init__(
        self,
        handler: Callable[[Context], Awaitable[Any]],
        journal: Sequence[JournalEntry] | None = None,
        *,
        reply: object = None,
        answer: Answer | None = None,
    ) -> None:
        begun = SavedTurn("message", "z", b"", SEED, "", list(journal)) if journal is not None else None
        ctx = Context("a", 1, "z", Clock())
        ctx.begin(journal=TurnJournal(SEED, begun))
        self.handler: Any = handler(ctx)
        self.journal: list[JournalEntry] = list(journal or ())
        self.asked: list[list[str]] = []
        self._reply = reply
        self._answer = answer

    def end(self, limit: int = 1000) -> Any:
        """Run to the end, or until so many entries are in the journal (None then)."""
        found: Any = None
        while True:
            try:
                end = self.handler.send(found)
            except StopIteration as over:
                return over.value
            assert isinstance(end, SegmentEnd)
            self.journal += end.entries
            requests, first = end.members or [end.waits], len(self.journal)
            self.asked.append([f"{each.kind} {each.name}".strip() for each in requests])
            works: dict[int, Any] = {**end.works} or {first: end.work}
            entries = [self._done(request, works.get(first + n)) for n, request in enumerate(requests)]
            self.journal += entries
            if len(self.journal) > limit:
                self.handler.close()
                return None
            found = entries if end.members else entries[0]

    def _done(self, request: JournalEntry, work: Any) -> JournalEntry:
        if self._answer is not None:
            return answered(request, self._answer(request))
        if request.kind == "call":
            return JournalEntry(request.kind, request.name, request.digest, DONE, encode_message(self._reply))
        key = {"key": "outside"} if request.kind == "effect" else {}
        try:
            result = work.function(**key)
            value = asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
            return JournalEntry(request.kind, request.name, request.digest, DONE, encode_result(request.name, value))
        except Exception as error:
            return JournalEntry(request.kind, request.name, request.digest, FAILED, encode_error(error))


def answered(request: JournalEntry, value: Any) -> JournalEntry:
    """A request that has ended with this value, which may be encoded already."""
    result = value if isinstance(value, bytes) else encode_result(request.name, value)
    return JournalEntry(request.kind, request.name, request.digest, DONE, result)


async def _awaited(found: Any) -> Any:
    return await found
