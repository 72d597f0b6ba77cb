"""Restores requested by tools. This module finds the requested epoch, previews what a restore would undo, and checks that the inputs to be
replayed are available.

A preview reflects the state and the store at one moment. Work done after the preview but before the restore is undone as well. After
confirming a preview, the caller requests the epoch number instead of a tag or "last", so the same epoch is restored.

Usually no input is missing, because host logs keep all inputs that the oldest epoch in the log needs. If inputs are missing because the
store was repaired from copies, the fleet can only be restored without them. The check runs before the plan is made, so that hosts never
receive a plan that they cannot apply.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from snapline.coordinator.leader import events as ev
from snapline.coordinator.state.fleet_records import ALIVE
from snapline.coordinator.state.fleet_state import FleetState
from snapline.coordinator.state.fleet_view import above, refusal_of_restore
from snapline.coordinator.state.operations import TEXT_CHARACTERS_MAX
from snapline.errors import ExternalFailureError, NotFoundError, UsageError
from snapline.messages.answers import InputsAgain, RestorePreview, RestoreReply, TopicUndone
from snapline.messages.dependencies import Report, changes_between, describe_changes, refused, reports_in
from snapline.messages.effect_records import (
    DONE,
    EFFECTS_TOPIC,
    FAILED,
    INTENT,
    EffectRecord,
    effect_undone_by,
    outside_key,
    read_record,
)
from snapline.storage.log.log_record import BEGUN, EFFECT, LoggedEntry
from snapline.storage.packs.checkpoint import JournalEntry
from snapline.storage.packs.manifest import Metadata
from snapline.storage.retention.epoch_retention import parse_created
from snapline.storage.store.store import Store

NEWEST = ("last", "latest")
"""Names for the newest complete epoch in the log. The store may contain a later epoch that is void."""

TOKEN_CHARACTERS_MAX = 128

AnswerT = TypeVar("AnswerT", bound=ev.AnswerTool)


class Ask(Protocol):
    """Type of a function that sends a request to the leader core, such as `LeaderRunner.ask`."""

    def __call__(self, question: Callable[[int], ev.Event], answer: type[AnswerT]) -> Awaitable[AnswerT]: ...


class Restoring:
    """Executes the restores that tools request from one replica, while it leads."""

    def __init__(self, state: FleetState, store: Store) -> None:
        self._state = state
        self._store = store

    async def preview(self, snapshot: str, *, is_dropping: bool) -> RestorePreview:
        """Return what a restore would undo, and which inputs it would replay.

        Raises:
            NotFoundError: the snapshot does not exist, or the coordinator does not keep it any more.
            UsageError: the fleet cannot be restored to the snapshot.
            StoreError: the snapshot cannot be read.
        """
        image, epoch = self._state.image, await self._resolve(snapshot)
        discarded = above(image, epoch)
        members = dict.fromkeys([*self._state.members_of(epoch), *image.epochs[epoch].unborn])
        living = {agent: None for agent, _ in self._state.living_agents()}
        roots = {item: image.epochs[item].root for item in (epoch, *discarded)}
        about, logged, (outputs, effects) = await asyncio.to_thread(self._read, epoch, roots)
        inputs = tuple([item for item in logged if not self._state.has_left_before(item.agent, epoch)])
        return RestorePreview(
            epoch=epoch,
            root=roots[epoch],
            created=about.created,
            age_s=_age_s(about.created),
            void_epochs=tuple(discarded),
            agents_gone=tuple(sorted(living.keys() - members.keys())),
            agents_back=tuple(sorted(members.keys() - living.keys())),
            is_dropping_inputs=is_dropping,
            inputs=inputs,
            outputs=outputs,
            effects=effects,
            dependencies=changes_between(reports_in(about.dependencies), self._reports()),
        )

    def _reports(self) -> list[Report]:
        """Return what the hosts run on that are alive."""
        image = self._state.image
        keys = dict.fromkeys([record.report for record in image.hosts.values() if record.state == ALIVE])
        return [image.reports[key] for key in keys if key in image.reports]

    async def restore(
        self, snapshot: str, token: str, reason: str, *, is_dropping: bool, accepts_changes: bool = False, ask: Ask
    ) -> RestoreReply:
        """Restore the fleet, and return when the plan is committed.

        Raises:
            NotFoundError, UsageError, StoreError: the same errors as for `preview`. UsageError is also raised if inputs are missing and the
                caller did not allow dropping inputs, or if the fleet's policy refuses changed dependencies and the caller does not accept
                changes.
            ExternalFailureError: no plan could be made in time, or another restore is active.
        """
        if not 0 < len(token) <= TOKEN_CHARACTERS_MAX or len(reason) > TEXT_CHARACTERS_MAX:
            raise UsageError(
                f"a restore has a token of 1 to {TOKEN_CHARACTERS_MAX} characters and a reason of {TEXT_CHARACTERS_MAX} at most"
            )
        if self._state.plan_of_request(token) is None:
            estimate = await self.preview(snapshot, is_dropping=is_dropping)
            _check_inputs(estimate)
            if not accepts_changes:
                _check_dependencies(estimate)
            text = f"back to epoch {estimate.epoch} on purpose" + (f": {reason}" if reason else "")
            answer = await ask(
                lambda number: ev.RestoreRequested(number, token, estimate.epoch, text, is_dropping), ev.AnswerRestore
            )
            if answer.refused:
                raise ExternalFailureError(answer.refused) if answer.may_pass else UsageError(answer.refused)
        plan = self._state.plan_of_request(token)
        assert plan is not None and plan.restore is not None, "a restore that was answered has a plan"
        return RestoreReply(plan.number, plan.line_epoch, tuple(plan.restore.voided))

    async def _resolve(self, snapshot: str) -> int:
        image = self._state.image
        if snapshot in NEWEST:
            epoch = self._state.newest_complete()
            if not epoch:
                raise NotFoundError("no snapshot is complete yet: there is nothing to go back to")
            return epoch
        if snapshot.isdecimal() and int(snapshot) <= image.begun:
            epoch = int(snapshot)
        else:
            epoch = await asyncio.to_thread(self._store.resolve, snapshot)
        refusal = refusal_of_restore(image, epoch)
        if refusal:
            raise (UsageError if epoch in image.epochs else NotFoundError)(refusal)
        return epoch

    # ---- in a thread ------------------------------------------------------------------------------------------------

    def _read(self, epoch: int, roots: Mapping[int, str]) -> "tuple[Metadata, tuple[InputsAgain, ...], _Released]":
        store = self._store
        about = store.read_manifest(roots[epoch], epoch=epoch).metadata
        newest = max(roots)
        latest = about if newest == epoch else store.read_manifest(roots[newest], epoch=newest).metadata
        numbers, logged = _read_logs_beyond(store, about)
        agents = sorted(
            {*numbers, *[agent for agent, last in latest.inputs.items() if last > about.inputs.get(agent, 0)]}
        )
        again = [_replayed_inputs(agent, about, latest, numbers.get(agent, set())) for agent in agents]
        return about, tuple(again), _undone(store, [void_epoch for void_epoch in roots if void_epoch != epoch], logged)


def _read_logs_beyond(store: Store, about: Metadata) -> "tuple[dict[str, set[int]], list[_AgentEffect]]":
    """Read the host log entries after an epoch, and return the input numbers of each agent and the effect records in log order."""
    inputs: dict[str, set[int]] = {}
    calls: list[_AgentEffect] = []
    for log, numbers in sorted(store.read_logs().items()):
        for number in numbers:
            try:
                batch = store.read_batch(log, number)
            except NotFoundError:  # the batch was deleted in the meantime, so no kept epoch needs it
                continue
            if batch is None:
                continue
            for logged in batch.inputs:
                if logged.number > about.inputs.get(logged.agent, 0):
                    inputs.setdefault(logged.agent, set()).add(logged.number)
            beyond = [logged for logged in batch.entries if logged.turn > about.durable_turns.get(logged.agent, 0)]
            calls += [
                (logged.agent, _effect_record_of(logged, about.cluster)) for logged in beyond if _is_call(logged.entry)
            ]
    return inputs, calls


def _is_call(entry: JournalEntry) -> bool:
    """Return whether the entry records an effect call. Refused effects, and results taken from an earlier turn, do not count as calls."""
    return entry.kind == EFFECT and entry.outcome in (DONE, FAILED, BEGUN)


def _effect_record_of(logged: LoggedEntry, cluster: str) -> EffectRecord:
    """Return an effect record for a logged call, even if none was ever written."""
    entry = logged.entry
    key, _, number = entry.sender.rpartition("#")
    generation, (undoes, of) = int(number), effect_undone_by(key) or ("", 0)
    stage = INTENT if entry.outcome == BEGUN else entry.outcome
    outside = outside_key(cluster, logged.agent, key, generation)
    return EffectRecord(stage, key, generation, entry.name, outside, undoes=undoes, undoes_generation=of)


def _replayed_inputs(agent: str, about: Metadata, latest: Metadata, numbers: set[int]) -> InputsAgain:
    first = about.inputs.get(agent, 0) + 1
    last = max([latest.inputs.get(agent, 0), *numbers])
    missing = [number for number in range(first, last + 1) if number not in numbers]
    return InputsAgain(agent, first, len(numbers), (missing[0], missing[-1]) if missing else ())


_Released = tuple[tuple[TopicUndone, ...], tuple[str, ...]]
"""(outputs that the restore reverts, effects that it does not revert)."""


_AgentEffect = tuple[str, EffectRecord]
"""(agent, record of one of its effects)."""


def _undone(store: Store, discarded: Iterable[int], logged: Iterable[_AgentEffect]) -> _Released:
    """Return the outputs in these epochs that a restore reverts, and the effects that it does not revert.

    `logged` contains further effect calls, whose outputs have been deleted or not released yet.
    """
    released = dict.fromkeys(store.output_epochs())
    topics: Counter[str] = Counter()
    calls: list[_AgentEffect] = []
    for epoch in discarded:
        for output in store.read_release(epoch).outputs if epoch in released else ():
            topics[output.topic] += 1
            if output.topic == EFFECTS_TOPIC:
                calls.append((output.agent, read_record(output.payload)))
    return tuple([TopicUndone(topic, count) for topic, count in sorted(topics.items())]), effects_left(
        [*calls, *logged]
    )


_EFFECT_OUTCOMES = {DONE: "done", FAILED: "failed, perhaps done", INTENT: "asked for, perhaps done"}


def effects_left(words: Iterable[_AgentEffect]) -> tuple[str, ...]:
    """Return one line for each external effect in these records that remains in force. Effects undone by a compensation are omitted."""
    remaining: dict[tuple[str, str, int], str] = {}
    for agent, record in words:
        if record.stage not in _EFFECT_OUTCOMES:  # other stages do not change the fate of the effect
            continue
        key, undone = (agent, record.key, record.generation), (agent, record.undoes, record.undoes_generation)
        remaining[key] = f"{agent}: {record.name}, {_EFFECT_OUTCOMES[record.stage]}, key {record.outside_key}"
        if record.stage == DONE and remaining.pop(undone, ""):
            del remaining[key]
    return tuple(remaining.values())


def _check_inputs(found: RestorePreview) -> None:
    lacking = [agent_inputs for agent_inputs in found.inputs if agent_inputs.missing]
    if lacking and not found.is_dropping_inputs:
        one = lacking[0]
        others = f", and of {len(lacking) - 1} others" if len(lacking) > 1 else ""
        raise UsageError(
            f"the host logs lack inputs {one.missing[0]} to {one.missing[-1]} of agent {one.agent}{others}, which epoch {found.epoch} has "
            "not consumed: go back to a later snapshot, or drop inputs (--drop-inputs)"
        )


def _check_dependencies(found: RestorePreview) -> None:
    changes = refused(found.dependencies)
    if changes:
        raise UsageError(
            f"the hosts have other dependencies than in epoch {found.epoch}: {describe_changes(changes)}: go back to a snapshot that was "
            "made with those of now, or accept the changes (--accept-changes)"
        )


def _age_s(created: str) -> float:
    created_ns = parse_created(created)
    return round(max(0.0, time.time() - created_ns / 1e9), 1) if created_ns is not None else 0.0
