"""Groups: several requests of a durable turn that wait at the same time.

A member is the coroutine of a request, or of the agent's own function that makes one request. The group starts each member up to its
request, in their order, and then waits for all requests together (`TurnJournal.wait_for_group`). When the group has ended, each member that
has an entry in the journal continues with it.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Self, TypeVar

from snapline.agent_runtime.durable import GROUP_MAX, LOST, EffectWork, GroupEnd, MemberRequest, TurnJournal
from snapline.errors import UsageError
from snapline.storage.packs.checkpoint import JournalEntry

GROUP_TAKES = "a group takes ctx.step(…), ctx.effect(…), ctx.call(…), ctx.receive(…), ctx.approval(…) and ctx.sleep(…)"

Member = Coroutine[Any, Any, Any]

_Result = TypeVar("_Result")


class GroupMember(Generic[_Result]):
    """A member of a group.

    Attributes:
        result: the member's result, which exists behind the block.
    """

    __slots__ = ("_result",)

    def __init__(self) -> None:
        self._result: tuple[_Result] | None = None

    def ended(self, result: _Result) -> None:
        """Set the result."""
        self._result = (result,)

    @property
    def result(self) -> _Result:
        if self._result is None:
            raise UsageError("a member of ctx.group has its result behind the block: read it there")
        return self._result[0]

    def __await__(self) -> Any:  # no member can be awaited
        raise UsageError("a member of ctx.group is not awaited: its result is there behind the block")


class Group:
    """A block whose members are gathered at its end (`Context.group`). If the block raises an error, nothing is requested."""

    def __init__(self, gather: Callable[..., Awaitable[list[Any]]], on_error: str) -> None:
        end_on_error("ctx.group", on_error)
        self._gather = gather
        self._on_error = on_error
        self._awaitables: list[Awaitable[Any]] = []
        self._members: list[GroupMember[Any]] = []
        self._is_open = False

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    def add(self, member: Awaitable[_Result]) -> GroupMember[_Result]:
        """Add a member, which starts at the end of the block.

        Raises:
            UsageError: If the block has ended.
        """
        if not self._is_open:
            close([member])
            raise UsageError("members are added within the block: async with ctx.group() as group")
        self._awaitables.append(member)
        self._members.append(GroupMember())
        return self._members[-1]

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._is_open = False
        if error is not None:
            close(self._awaitables)
            return
        results = await self._gather(*self._awaitables, on_error=self._on_error)
        for member, result in zip(self._members, results, strict=True):
            member.ended(result)


def end_on_error(method: str, on_error: object) -> GroupEnd:
    """Return when a group with this `on_error` ends. Raise UsageError if the value is unknown."""
    if on_error not in ("wait", "cancel"):
        raise UsageError(f'{method} has on_error={on_error!r}: use "wait" or "cancel"')
    return "all" if on_error == "wait" else "failure"


def requested(journal: TurnJournal, members: Sequence[Member], ends_at: GroupEnd) -> list[MemberRequest]:
    """Begin the members of a group, and return what they request.

    Raises:
        UsageError: If a member is no request, or there are too many, or two receive messages of the same type or are effects with the same
            key, or an effect is in a group that may end before it.
    """
    if journal.grouped is not None:
        raise UsageError(f"a group has no groups in it: {GROUP_TAKES}")
    if len(members) > GROUP_MAX:
        raise UsageError(f"a group takes at most {GROUP_MAX} members, not {len(members)}: take them in turns")
    requests: list[MemberRequest] = []
    try:
        for member in members:
            journal.grouped = len(requests)
            requests.append(_request_of(member))
    finally:
        journal.grouped = None
    received = [each.request.name for each in requests if each.request.kind == "receive"]
    if len(received) > len(set(received)):
        raise UsageError("a group takes one ctx.receive of each type of message")
    keys = [each.work.intent.key for each in requests if isinstance(each.work, EffectWork)]
    if keys and ends_at != "all":
        raise UsageError(
            'effects cannot be cancelled, so ctx.race and on_error="cancel" take none: use ctx.gather, or await them alone'
        )
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"two effects of a group have the key {key!r}: give each a key of its own, or ask once")
    return requests


def _request_of(member: Member) -> MemberRequest:
    try:
        request = member.send(None)
    except (StopIteration, AttributeError) as error:
        raise UsageError(f"{GROUP_TAKES}, and not a {type(member).__qualname__}") from error
    if not isinstance(request, MemberRequest):
        raise UsageError(f"a member of a group awaits a {type(request).__qualname__}: {GROUP_TAKES}")
    return request


def results_of(members: Sequence[Member], entries: Sequence[JournalEntry], ends_at: GroupEnd) -> list[Any]:
    """Return the results of members with these entries, or raise the error of the first that failed. Lost members have no results."""
    results, failure = [], None
    try:
        for member, entry in zip(members, entries, strict=True):
            if entry.outcome == LOST:
                continue
            try:
                member.send(entry)
            except StopIteration as end:
                results.append(end.value)
            except Exception as error:
                failure = failure or error
            else:
                raise UsageError("a member of a group waits once: await what follows it behind the group")
    finally:
        close(members)
    if failure is not None:
        raise failure
    if ends_at == "failure" and len(results) < len(members):
        raise UsageError(
            'a member of a group with on_error="cancel" has caught its error: let it raise, and catch it there'
        )
    return results


def close(members: Sequence[Awaitable[Any]]) -> None:
    """Close coroutines that are not needed any more."""
    for member in members:
        if hasattr(member, "close"):
            member.close()
