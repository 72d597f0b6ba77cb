"""Actions that operators were shown and have confirmed: each confirmation page is for one action, which is done once.

A page gets an unguessable key, and the action behind it knows what the page said: which run of a host, which plan. So what is done is
what was shown, whichever replica leads by then, and whatever a form contains. A form that comes again, from a reload or a second click, finds its
key used, and is answered with the outcome of the first. An unknown key does nothing: the page has to be made again.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from snapline.errors import CoordinatorUnavailableError, SnaplineError, UnknownOutcomeError, UsageError
from snapline.view.markup import Markup

KEPT_MAX = 512
"""Largest number of confirmation pages and their outcomes. The oldest that is not under way is removed first."""

WAIT_S = 8.0
"""Longest wait for an action's outcome before the page says that it is under way: most take less than a second."""


class ActionOutcome(msgspec.Struct, frozen=True):
    """Outcome of an action, in a sentence, and where to look; `is_bad`: it was not done, or its outcome is unknown."""

    sentence: str
    address: str = "/"
    where: str = "The fleet"
    is_bad: bool = False


Fields = Mapping[str, str]


class ActionField(msgspec.Struct, frozen=True):
    """Field that the operator fills in. `choices`: value and words of each; none: a text, of at most `characters_max`."""

    name: str
    label: str
    choices: tuple[tuple[str, str], ...] = ()
    is_required: bool = False
    characters_max: int = 128


class ProposedAction(msgspec.Struct, frozen=True):
    """An action and what the page says of it before it is done.

    Attributes:
        title: what it is, in a few words; `button`: the same, for the button.
        sentences: what will happen.
        do: does it, with what was filled in.
        check: where to see whether it was done, if that is unknown: address and name.
        more: shown below the sentences.
        is_grave: it undoes work, or stops something.
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
    def is_underway(self) -> bool:
        return self.task is not None and not self.task.done()


class Actions:
    """Proposed actions, by key, and their outcomes. For one event loop."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept: dict[str, _Kept] = {}
        self._kept_max = kept_max

    def propose(self, session: str, proposed: ProposedAction) -> str:
        """Return the key that its form has to carry, in the same session.

        Raises:
            UsageError: too many are under way.
        """
        while len(self._kept) >= self._kept_max:
            oldest = next((key for key, kept in self._kept.items() if not kept.is_underway), None)
            if oldest is None:
                raise UsageError(f"{self._kept_max} actions are under way: wait for one")
            del self._kept[oldest]
        key = secrets.token_urlsafe(16)
        self._kept[key] = _Kept(session, proposed)
        return key

    async def do(self, session: str, key: str, fields: Fields) -> None:
        """Do it, unless it was begun before; waits for the outcome, but not for long.

        Raises:
            UsageError: no page of this session has this key.
        """
        kept = self._find(session, key)
        if kept.task is None:
            kept.task = asyncio.create_task(_done(kept.proposed, fields))
        await asyncio.wait({kept.task}, timeout=WAIT_S)

    def outcome(self, session: str, key: str) -> tuple[ProposedAction, ActionOutcome | None]:
        """Return the action and its outcome; None: it is under way.

        Raises:
            UsageError: no page of this session has this key, or its form was not sent.
        """
        kept = self._find(session, key)
        if kept.task is None:
            raise UsageError("that was not confirmed: nothing has been done")
        return kept.proposed, None if kept.is_underway else kept.task.result()

    async def close(self) -> None:
        """Stop waiting. The fleet still does what was requested of it."""
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
    given = {each.name: fields.get(each.name, "").strip()[: each.characters_max] for each in proposed.fields}
    try:
        return await proposed.do(given)
    except (UnknownOutcomeError, CoordinatorUnavailableError) as error:
        told = f"Nobody knows whether that was done: {error}. Look before you ask again."
        return ActionOutcome(told, address, where, is_bad=True)
    except (SnaplineError, OSError) as error:
        return ActionOutcome(f"That was not done: {error}.", address, where, is_bad=True)
