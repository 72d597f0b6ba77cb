"""Actions that operators were shown and have confirmed: each confirmation page belongs to one action, which runs once.

A page gets an unguessable key, and its action stores the details shown on the page, such as the run of a host or the plan. So the action does
exactly what was shown, even after a change of leader, and regardless of the form's content. A form that is submitted again, by a reload or a
second click, finds its key used, and gets the outcome of the first submission. An unknown key does nothing: open a new page.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from snapline.errors import CoordinatorUnavailableError, SnaplineError, UnknownOutcomeError, UsageError
from snapline.view.markup import Markup

KEPT_MAX = 512
"""Largest number of confirmation pages and their outcomes. The oldest one that is not in progress is removed first."""

WAIT_S = 8.0
"""Longest wait for an action's outcome before the page reports it as in progress: most take less than a second."""


class ActionOutcome(msgspec.Struct, frozen=True):
    """Outcome of an action, as a sentence with a link; `is_bad`: it failed, or its outcome is unknown."""

    sentence: str
    address: str = "/"
    where: str = "The fleet"
    is_bad: bool = False


Fields = Mapping[str, str]


class ActionField(msgspec.Struct, frozen=True):
    """Field that the operator fills in. `choices`: value and label of each choice; none: a text of at most `characters_max`."""

    name: str
    label: str
    choices: tuple[tuple[str, str], ...] = ()
    is_required: bool = False
    characters_max: int = 128


class ProposedAction(msgspec.Struct, frozen=True):
    """An action, and the content of its confirmation page.

    Attributes:
        title: short name of the action; `button`: label of the button.
        sentences: effects of the action.
        do: runs the action with the filled-in fields.
        check: address and name of the page that shows whether the action was done, if the outcome is unknown.
        more: content below the sentences.
        is_grave: the action undoes work, or stops something.
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
        """Return the key that the form must carry, in the same session.

        Raises:
            UsageError: too many actions are in progress.
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
        """Run the action unless it has begun already; wait up to `WAIT_S` for the outcome.

        Raises:
            UsageError: no page of this session has this key.
        """
        kept = self._find(session, key)
        if kept.task is None:
            kept.task = asyncio.create_task(_done(kept.proposed, fields))
        await asyncio.wait({kept.task}, timeout=WAIT_S)

    def outcome(self, session: str, key: str) -> tuple[ProposedAction, ActionOutcome | None]:
        """Return the action and its outcome; None: it is in progress.

        Raises:
            UsageError: no page of this session has this key, or its form was not sent.
        """
        kept = self._find(session, key)
        if kept.task is None:
            raise UsageError("that was not confirmed: nothing has been done")
        return kept.proposed, None if kept.is_underway else kept.task.result()

    async def close(self) -> None:
        """Stop waiting. The fleet still carries out requested actions."""
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
