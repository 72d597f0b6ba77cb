"""Forks a snapshot: it checks the whole request and then writes a new store (`storage/transfer/forking.py`).

All errors in a fork's code and settings are detected before any data is written. Examples are a missing class, a state without a migration,
an unfinished durable turn whose handler is missing, or a field that does not exist or has a different type. The snapshot is pinned while
the fork is written. The snapshot does not change, and its fleet may continue to run.

*Open effects* belong to the parent fleet, which calls these effects and undoes them if the turn fails. If a fork did the same, each effect
would be performed twice, under different outside keys. So the fork's checkpoints differ from the parent's checkpoints.

- If a turn waits for an effect, the result is a refusal, or the parent's outcome if the fork runs on the parent's answers.
- Completed effects of an unfinished turn are not undone. Turns that undo effects are removed, and so are the dead letters of failed undo
  turns.
- The keys of completed effects are kept, since these effects are part of the history that both fleets share.
- An ended effect of a failed turn, whether it succeeded or failed, does not count as an orphan. A later turn that requests this effect gets
  its result and does not undo the effect. In the fork, users cannot undo the effect.

*Changes to fields.* Apart from its large parts, a state is one MessagePack record without extensions (`storage/capture/encoder.py`). To
change a field, the record is decoded without types, one value is replaced, and the record is encoded again. So arrays and histories in
other fields are not read, and their bytes remain the same. The field's path is resolved through the declared types. The new value is
decoded from JSON as the field's declared type. Finally the whole record is decoded as the declared type, as a host will do when it restores
the state.
"""

import dataclasses
import time
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from snapline.agent_runtime.agent import agent_type, state_version_of
from snapline.agent_runtime.dependency_report import dependency_report
from snapline.agent_runtime.durable import ADOPTED, DONE, REFUSED
from snapline.agent_runtime.effect_ledger import UNDO
from snapline.agent_runtime.fleet import Fleet, check_skeleton, class_of, plan_line
from snapline.agent_runtime.message_encoding import encode_body, field_names
from snapline.agent_runtime.migrations import MigrationPlan, load_state
from snapline.agent_runtime.recorded_answers import AnswerBook, AskedQuestions, question_of
from snapline.agent_runtime.snapshots.answer_collection import NOTHING_COLLECTED, collect, whole_checkpoints
from snapline.errors import EncodingError, FleetDefinitionError, UsageError
from snapline.ids import check_id
from snapline.messages.dependencies import (
    DependencyChange,
    changes_between,
    describe_changes,
    merged,
    refused,
    reports_in,
)
from snapline.messages.payloads import split_message, unwrapped
from snapline.protocols.names import is_autonomous
from snapline.storage.capture.declared_values import check_declared
from snapline.storage.capture.saved_value_formats import NAMES_SHOWN, steps_of
from snapline.storage.capture.values import decode_declared
from snapline.storage.disk.object_disk import open_disk
from snapline.storage.keys.key_files import Keys
from snapline.storage.log.answer_files import RecordedAnswer, RecordedAnswers
from snapline.storage.log.log_record import EFFECT, LoggedInput
from snapline.storage.packs.checkpoint import (
    AgentCheckpoint,
    DeadLetterNumbers,
    JournalEntry,
    OpenEffect,
    SavedEffects,
)
from snapline.storage.packs.manifest import Manifest
from snapline.storage.store.protection import resolve_keys
from snapline.storage.store.store import Holds, Store
from snapline.storage.timestamps import instant
from snapline.storage.transfer.forking import ForkOrder, first_gap, pending_inputs, write_fork

_NOTHING_RECORDED: Mapping[int, RecordedAnswer | None] = {}

REFUSAL = "effect {name} was open in the snapshot that this fork was made of: it is its parent's, whatever came of it, and not done here"


def without_open_effects(
    checkpoint: AgentCheckpoint, recorded: Mapping[int, RecordedAnswer | None] = _NOTHING_RECORDED
) -> AgentCheckpoint:
    """Return the checkpoint from which the fork starts, in which no effect is open. If the agent has no effects and undoes none, the
    checkpoint is returned with equal content. `recorded` contains the parent's outcomes of open effects, by their places."""
    settled = _without_failed_compensations(_without_undoing(_without_window(checkpoint)))
    return _without_turn(settled, checkpoint, recorded)


def requested_effects(checkpoint: AgentCheckpoint) -> dict[int, JournalEntry]:
    """Return the effects for whose outcomes the agent waits, by their places in the journal: one, or those of a group. The checkpoint may
    lack their intent records, which are added only after the segment that requests the effects."""
    turn, place = checkpoint.turn, checkpoint.journal_entries
    if turn is None:
        return {}
    requests = [turn.waits] if turn.waits is not None else turn.members
    return {place + i: each for i, each in enumerate(requests) if each.kind == EFFECT and not each.outcome}


def _without_window(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    effects = checkpoint.effects or SavedEffects()
    if not effects.keys and not checkpoint.effect_group and checkpoint.effects is None:
        return checkpoint
    nothing = {"is_orphan": False, "name": "", "undo": "", "undo_arguments": [], "dead_letter": 0}
    keys = [msgspec.structs.replace(known, **nothing) for known in effects.keys]
    kept = SavedEffects(keys) if keys else msgspec.UNSET
    return msgspec.structs.replace(checkpoint, saved_effects=kept, saved_group=msgspec.UNSET)


def _without_undoing(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    """Remove waiting turns that undo effects. Such turns may also undo effects without keys, which the checkpoint may record nowhere
    else."""
    stash = [stashed for stashed in checkpoint.stash if not stashed.payload.startswith(UNDO)]
    return msgspec.structs.replace(checkpoint, saved_stash=stash or msgspec.UNSET)


def _without_failed_compensations(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    dead_letters, numbers = checkpoint.dead_letters, checkpoint.dead_letter_numbers
    kept = [place for place, dead_letter in enumerate(dead_letters) if not dead_letter.payload.startswith(UNDO)]
    if len(kept) == len(dead_letters):
        return checkpoint
    return msgspec.structs.replace(
        checkpoint,
        dead_letters=[dead_letters[place] for place in kept],
        saved_numbers=DeadLetterNumbers(numbers.last, [numbers.numbers[place] for place in kept]),
    )


def _without_turn(
    checkpoint: AgentCheckpoint, before: AgentCheckpoint, recorded: Mapping[int, RecordedAnswer | None]
) -> AgentCheckpoint:
    """Settle the open effects of the agent's turn, which the checkpoint `before` contains."""
    turn = checkpoint.turn
    if turn is not None and turn.payload.startswith(UNDO):
        return msgspec.structs.replace(
            checkpoint, saved_turn=msgspec.UNSET, saved_journal=msgspec.UNSET, timers=checkpoint.own_timers
        )
    requests = requested_effects(checkpoint)
    if turn is None or not requests:
        return checkpoint
    single = before.effects.open if before.effects is not None else None
    settled = [
        _settled(request, single or before.effect_group.get(place), recorded.get(place))
        for place, request in requests.items()
    ]
    if turn.waits is not None:
        turn = msgspec.structs.replace(turn, journal=[*turn.journal, *settled], waits=None)
        return msgspec.structs.replace(checkpoint, saved_turn=turn, timers=checkpoint.own_timers)
    by_place = dict(zip(requests, settled, strict=True))
    members = [by_place.get(place, x) for place, x in enumerate(turn.members, checkpoint.journal_entries)]
    if all(member.outcome for member in members):
        journal = [*turn.journal, *members]
        turn = msgspec.structs.replace(turn, journal=journal, members=[], group=len(members))
    else:
        turn = msgspec.structs.replace(turn, members=members)
    return msgspec.structs.replace(checkpoint, saved_turn=turn)


def _settled(request: JournalEntry, opened: OpenEffect | None, recorded: RecordedAnswer | None) -> JournalEntry:
    """Return the journal entry of an effect that was open in the snapshot: with its recorded outcome, or refused."""
    if recorded is not None:
        outcome = ADOPTED if recorded.outcome == DONE else recorded.outcome
        return msgspec.structs.replace(request, outcome=outcome, result=recorded.result)
    reason = REFUSAL.format(name=repr(request.name) if opened is None else f"{request.name!r} (key {opened.key})")
    return msgspec.structs.replace(request, outcome=REFUSED, result=reason.encode())


class FieldSetting(msgspec.Struct, frozen=True):
    """A new value, as JSON, for one field of one agent."""

    agent: str
    path: str
    value: bytes

    @property
    def place(self) -> str:
        """Return the field's location in the form `AGENT.PATH`."""
        return f"{self.agent}{'' if self.path.startswith('[') else '.'}{self.path}"


class SettingError(UsageError):
    """Raised if a field does not exist or cannot be set to the given value. Nothing was written."""


def find_agent(place: str, agents: Mapping[str, object]) -> tuple[str, str]:
    """Split `AGENT.PATH` into the agent's id and the path. Because ids may contain dots, the longest matching id in `agents` is used.

    Raises:
        SettingError: If `place` names an unknown agent or no field.
    """
    ends = [i for i, character in enumerate(place) if character in ".["]
    for end in reversed(ends):
        if place[:end] in agents:
            path = place[end:].removeprefix(".")
            if path:
                return place[:end], path
    raise SettingError(f"{place!r} names no field of an agent in the snapshot: write AGENT.FIELD=JSON")


def with_settings(
    plan: MigrationPlan | None, checkpoint: AgentCheckpoint, settings: list[FieldSetting]
) -> AgentCheckpoint:
    """Return the checkpoint with these fields set, in the given order. The state is first migrated to the current version of its class.

    `plan` is the migration plan for the state, or None if the agent has not been created yet.

    Raises:
        SettingError: If a field does not exist, a value has the wrong type, or the state cannot be changed.
        MigrationError: If the state cannot be migrated to the current version of its class.
    """
    first = settings[0].place
    if plan is None:
        raise SettingError(f"{first} cannot be set: the agent is not made yet in the snapshot")
    if checkpoint.turn is not None:
        raise SettingError(
            f"{first} cannot be set: the agent is in the middle of a durable turn, which would go on from another state than it "
            "began with; take a snapshot between two turns"
        )
    checkpoint = _migrated(plan, checkpoint, first)
    known = agent_type(plan.agent_class)
    record = _decoded_record(checkpoint, first)
    for setting in settings:
        record = _set(record, known.state_type, setting)
    state = msgspec.msgpack.encode(record)
    if not checkpoint.parts:
        try:
            check_skeleton(checkpoint.agent, known, state)
        except EncodingError as error:
            raise SettingError(str(error)) from error
    return msgspec.structs.replace(checkpoint, state=state)


def _decoded_record(checkpoint: AgentCheckpoint, first: str) -> object:
    try:
        return msgspec.msgpack.decode(checkpoint.state)
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise SettingError(f"{first} cannot be set: the state cannot be read without its types ({error})") from error


def _migrated(plan: MigrationPlan, checkpoint: AgentCheckpoint, first: str) -> AgentCheckpoint:
    if not plan.steps:
        return checkpoint
    if checkpoint.parts:
        raise SettingError(
            f"{first} cannot be set: the state is of an older version and holds arrays or histories; fork without it, run the fork for one "
            "snapshot, and fork that"
        )
    known = agent_type(plan.agent_class)
    state = load_state(plan, checkpoint).state
    check_declared(state, known.state_type, "the migrated state")
    return msgspec.structs.replace(
        checkpoint,
        state=encode_body(state),
        state_type=known.state_name,
        state_version=state_version_of(plan.agent_class),
        state_fields=known.state_fields,
    )


def _set(record: object, declared: Any, setting: FieldSetting) -> object:
    """Return the record with one value replaced. Containers along the path are changed in place."""
    steps = [key for key, _ in steps_of(setting.path)]
    holder = [record]
    value: Any = holder
    place: Any = 0
    for index, key in enumerate(steps):
        inner, where = value[place], ".".join(map(str, steps[:index]))
        value, place = inner, None
        place, declared = _step(inner, declared, key, where, setting, is_last=index == len(steps) - 1)
    if isinstance(value, list | dict) and _holds_large(value, place):
        raise SettingError(f"{setting.place} is an array, a history or the like: only plain values can be set")
    value[place] = _encoded(declared, setting)
    return holder[0]


def _holds_large(value: Any, place: Any) -> bool:
    field_value = value.get(place) if isinstance(value, dict) else value[place]
    return isinstance(field_value, msgspec.msgpack.Ext)


def _encoded(declared: Any, setting: FieldSetting) -> object:
    try:
        value = msgspec.json.decode(setting.value, type=declared, dec_hook=decode_declared)
        check_declared(value, declared, setting.place)
        return msgspec.msgpack.decode(encode_body(value))
    except (msgspec.DecodeError, TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        shown = setting.value[:100].decode(errors="replace")
        raise SettingError(
            f"{setting.place} cannot be {shown}: it is declared as {_name(declared)} ({error})"
        ) from error


def _name(declared: Any) -> str:
    return declared.__qualname__ if isinstance(declared, type) and not typing.get_args(declared) else str(declared)


# ---- one step along the declared types ------------------------------------------------------------------------------


def _step(
    inner: object, declared: Any, key: object, where: str, setting: FieldSetting, *, is_last: bool
) -> tuple[object, Any]:
    """Return the key or index in `inner` to which the path's next step refers, and the declared type of the value there."""
    declared = _bare(declared)
    origin = typing.get_origin(declared) or declared
    if isinstance(inner, dict) and origin in (dict, Mapping):
        return _step_in_dict(inner, typing.get_args(declared), key, setting, is_last=is_last)
    if isinstance(inner, list) and origin is list and isinstance(key, int) and -len(inner) <= key < len(inner):
        return key, (typing.get_args(declared) or (Any,))[0]
    if isinstance(inner, dict | list) and isinstance(origin, type) and field_names(origin):
        return _step_in_record(inner, declared, key, setting)
    what = f"{where!r} in the state of {setting.agent}" if where else f"the state of {setting.agent}"
    raise SettingError(f"{setting.place} cannot be set: {what} is {_name(declared)}, which has no {key!r}")


def _bare(declared: Any) -> Any:
    """Remove annotations from a type. If a union then contains only one type other than None, return that type."""
    if typing.get_origin(declared) is typing.Annotated:
        return _bare(typing.get_args(declared)[0])
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        others = [argument for argument in typing.get_args(declared) if argument is not types.NoneType]
        return _bare(others[0]) if len(others) == 1 else declared
    return declared


def _step_in_dict(
    inner: dict[Any, Any], of: tuple[Any, ...], key: object, setting: FieldSetting, *, is_last: bool
) -> tuple[object, Any]:
    key_type, value_type = of if len(of) == 2 else (Any, Any)
    try:
        encoded_key = msgspec.msgpack.decode(encode_body(msgspec.convert(key, key_type, strict=False)))
    except (msgspec.ValidationError, TypeError) as error:
        raise SettingError(f"{setting.place} cannot be set: {key!r} is no key there ({error})") from error
    if not is_last and encoded_key not in inner:
        raise SettingError(f"{setting.place} cannot be set: there is no {key!r} in {_shown(inner)}")
    return encoded_key, value_type


def _step_in_record(inner: Any, declared: Any, key: object, setting: FieldSetting) -> tuple[object, Any]:
    fields = _fields(declared)
    if key not in fields:
        raise SettingError(f"{setting.place} cannot be set: {_name(declared)} has no {key!r}, but {_shown(fields)}")
    place, kind = fields[key]
    if isinstance(inner, dict):
        return place, kind
    offset = len(inner) - len(fields)  # the first item is the struct's tag
    return list(fields).index(key) + offset, kind


def _fields(declared: Any) -> dict[Any, tuple[str, Any]]:
    """Return, for each field's name, the field's name in an encoded record and the field's type."""
    origin = typing.get_origin(declared) or declared
    if issubclass(origin, msgspec.Struct):
        return {x.name: (x.encode_name, x.type) for x in msgspec.structs.fields(declared)}
    hints = typing.get_type_hints(origin, include_extras=True)
    names = [x.name for x in dataclasses.fields(origin)] if dataclasses.is_dataclass(origin) else field_names(origin)
    return {name: (name, hints[name]) for name in names}


def _shown(names: Mapping[Any, object]) -> str:
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join([str(name) for name in list(names)[:NAMES_SHOWN]]) or "nothing") + more


ForkInputs = Literal["copy", "drop"]

ForkAnswers = Literal["none", "parent", "only"]
"""Answers on which a fork runs: none, those that its parent has got since the snapshot, or nothing but them."""


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """The result of forking a snapshot.

    Attributes:
        store, cluster: location of the fork's store, and the fork's cluster id.
        parent, parent_name: cluster id and name of the parent fleet.
        epoch: number of the forked snapshot in both stores.
        root: digest of the fork's first snapshot.
        agents, messages: number of agents, and number of messages in transit.
        inputs_copied, inputs_dropped: number of copied and of dropped inputs. Only inputs that the parent acknowledged and its agents did
            not consume are counted.
        effects_refused: number of effects that agents were waiting for in the snapshot. Because these effects belong to the parent, the
            fork's handlers get a refusal as the result.
        changed: fields whose values were set, as `AGENT.PATH`.
        not_begun: agents in the fleet definition that do not start because they are not in the snapshot. An agent is missing because it has
            stopped in the parent, or because it is new in the definition.
        is_live: whether the fork may perform effects.
        answers, lost_batches: number of answers of the parent on which the fork runs, and as in `Collected`.
        dependencies: how the dependencies of the given fleet, in this process, differ from the snapshot's. It is empty if no fleet is given.
    """

    name: str
    store: str
    cluster: str
    parent: str
    parent_name: str
    epoch: int
    root: str
    agents: int
    messages: int
    inputs_copied: int = 0
    inputs_dropped: int = 0
    effects_refused: int = 0
    changed: tuple[str, ...] = ()
    not_begun: tuple[str, ...] = ()
    is_live: bool = False
    answers: int = 0
    lost_batches: int = 0
    dependencies: tuple[DependencyChange, ...] = ()


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a fork.

    Attributes:
        settings: new value as JSON for each field to set, which is named as `AGENT.FIELD`.
        fleet: fleet definition of the fork, or None for the parent's definition.
        inputs: whether to copy or drop inputs that the agents had not consumed in the snapshot.
        is_live: whether the fork may perform effects.
        answers: on which recorded answers the fork runs. With "only", requests without an answer fail.
        accepts_changes: whether dependencies may have changed even if the fleet's `on_change` refuses that.
    """

    name: str
    settings: Mapping[str, bytes] = {}
    fleet: Fleet | None = None
    inputs: ForkInputs = "drop"
    is_live: bool = False
    answers: ForkAnswers = "none"
    accepts_changes: bool = False


def fork_snapshot(
    source: Store, epoch: int, to: str, request: ForkRequest, *, keys: Keys | None = None, begin_again: bool = False
) -> Fork:
    """Fork a snapshot into a new store at the path or URL `to`. The new store is durable when the function returns.

    Args:
        keys: keys for the new store, or None to take the keys from the environment variables.
        begin_again: whether to remove an unfinished fork at `to` first. No other process may be writing to `to`.

    Raises:
        UsageError: If the request is invalid for the snapshot, or `to` is not empty. Nothing was written.
        EncodingError: If a class is missing, or a state cannot be migrated to the version of its class. Nothing was written.
        NotFoundError: If the store does not contain the snapshot.
        DamagedDataError: If the snapshot's data is damaged.
        StoreError: If reading or writing a store failed.
    """
    check_id(request.name, "fork")
    now_s = time.time()
    with Holds(source, now_s=lambda: now_s).holding(epoch):
        judged = _CheckedFork(source, epoch, request)
        order = judged.order(created=instant(now_s))
        fork = write_fork(source, epoch, open_disk(to), order, keys=resolve_keys(keys, None), begin_again=begin_again)
        if order.recorded is not None:
            Holds(fork, now_s=lambda: now_s).pin(epoch)  # its answers since then are kept, and can be compared
        return judged.report(fork, order)


class _CheckedFork:
    """A fork request that has been checked against all checkpoints of its snapshot."""

    def __init__(self, source: Store, epoch: int, request: ForkRequest) -> None:
        self._source = source
        self._request = request
        self._manifest: Manifest = source.read_manifest(source.read_ref(epoch), epoch=epoch)
        self._check_protocol()
        self._report, self._changes = self._check_dependencies()
        record = source.fork_record()
        self._gone: dict[str, None] = dict.fromkeys(record.gone if record is not None else ())
        self._parent_name = record.name if record is not None else self._manifest.metadata.fleet
        self._consumed: dict[str, int] = {}
        self._settled: dict[str, AgentCheckpoint] = {}
        """Checkpoints that differ from the parent's in effects or clocks, by agent. Agents with settings are not included."""
        self._effects_refused = 0
        self._collected = collect(source, epoch) if request.answers != "none" else NOTHING_COLLECTED
        self._book = AnswerBook(RecordedAnswers(self._collected.answers))
        self._settings = self._settings_by_agent()
        self._changed = self._check_all()
        self._pending = pending_inputs(source, self._consumed)

    def _check_protocol(self) -> None:
        metadata, fleet = self._manifest.metadata, self._request.fleet
        if fleet is not None and fleet.protocol != metadata.protocol:
            raise FleetDefinitionError(
                f"the snapshot was made by protocol {metadata.protocol}, and fleet {fleet.name!r} has {fleet.protocol}: a fork keeps it"
            )
        if is_autonomous(metadata.protocol) and len(metadata.ordinals) < len(self._manifest.agents):
            raise UsageError(
                f"epoch {metadata.epoch} was written by an earlier release, and lacks what a fork under {metadata.protocol} needs: run the fleet "
                "with this one, take a snapshot, and fork that"
            )

    def _check_dependencies(self) -> tuple[dict[str, str], tuple[DependencyChange, ...]]:
        """Return what this process would run the fork on, and how that differs from the snapshot. Raise UsageError for refused changes."""
        metadata, fleet = self._manifest.metadata, self._request.fleet
        if fleet is None:
            return {}, ()
        report = dependency_report(fleet.agents, fleet.declared, lambda: self._source)
        changes = changes_between(reports_in(metadata.dependencies), [report])
        if not self._request.accepts_changes and refused(changes):
            raise UsageError(
                f"this process has other dependencies than epoch {metadata.epoch}: {describe_changes(refused(changes))}: fork with those of "
                "then, or accept the changes (--accept-changes)"
            )
        return report, changes

    def _settings_by_agent(self) -> dict[str, list[FieldSetting]]:
        agents = {line.agent: None for line in self._manifest.agents}
        settings: dict[str, list[FieldSetting]] = {}
        for place, value in self._request.settings.items():
            agent, path = find_agent(place, agents)
            settings.setdefault(agent, []).append(FieldSetting(agent, path, value))
        if settings and self._request.fleet is None:
            raise UsageError(
                "fields are set by their declared types: name the fleet's classes with --fleet MODULE:FLEET"
            )
        return settings

    # ---- all checkpoints --------------------------------------------------------------------------------------------

    def _check_all(self) -> dict[str, AgentCheckpoint]:
        fleet, kept = self._request.fleet, dict[str, AgentCheckpoint]()
        read = self._read(kept)
        if fleet is None:
            for _ in read:
                pass
            return {}
        plans = plan_line(fleet, self._checked_turns(read, fleet))
        return {
            agent: with_settings(plans.get(agent), kept[agent], settings) for agent, settings in self._settings.items()
        }

    def _read(self, kept: dict[str, AgentCheckpoint]) -> Iterator[AgentCheckpoint]:
        agents = {line.agent: None for line in self._manifest.agents}
        for checkpoint in self._source.read_checkpoints(self._manifest):
            agent = checkpoint.agent
            others = (checkpoint.sent, checkpoint.received, checkpoint.in_transit)
            self._gone |= {name: None for names in others for name in names if name not in agents}
            self._consumed[agent] = checkpoint.inputs.number
            recorded = self._open_outcomes(checkpoint)
            begins = without_open_effects(checkpoint, recorded)
            begins = msgspec.structs.replace(begins, saved_clock=msgspec.UNSET, saved_asked=msgspec.UNSET)
            self._effects_refused += sum(recorded.get(place) is None for place in requested_effects(checkpoint))
            if agent in self._settings:
                kept[agent] = begins
            elif begins != checkpoint:
                self._settled[agent] = begins
            yield begins

    def _open_outcomes(self, checkpoint: AgentCheckpoint) -> dict[int, RecordedAnswer | None]:
        """Return the parent's outcomes of the effects for which the agent waits, by their places, as far as they are known."""
        requests = requested_effects(checkpoint)
        if self._request.answers == "none" or not requests:
            return {}
        (whole,) = whole_checkpoints(self._source, self._manifest, [checkpoint.agent])
        turn = whole.turn
        assert turn is not None
        found: dict[int, RecordedAnswer | None] = {}
        for place, request in requests.items():
            question, earlier = question_of(request), turn.members[: place - len(turn.journal)]
            occurrence = AskedQuestions().occurrence(question, turn.journal, earlier)
            found[place] = self._book.find(whole.agent, question, occurrence)
        return found

    def _checked_turns(self, read: Iterable[AgentCheckpoint], fleet: Fleet) -> Iterator[AgentCheckpoint]:
        """Yield the checkpoints, and check that the fork has a durable handler for each unfinished durable turn."""
        for checkpoint in read:
            agent_class = class_of(fleet, checkpoint.kind)  # `plan_line` reports all missing classes together
            if checkpoint.turn is not None and agent_class is not None:
                name = split_message(unwrapped(checkpoint.turn.payload))[0]
                handler = agent_type(agent_class).handlers.get(name)
                if handler is None or not handler.is_durable:
                    lacks = "has no handler for it" if handler is None else f"{handler.name} is not durable any more"
                    raise FleetDefinitionError(
                        f"agent {checkpoint.agent!r} is in the middle of a durable turn for {name!r}, and {agent_class.__qualname__} {lacks}: "
                        "take a snapshot when the turn is over, or fork with the handler as it was"
                    )
            yield checkpoint

    # ---- what the fork will hold --------------------------------------------------------------------------------------

    def order(self, *, created: str) -> ForkOrder:
        """Return the fork order for the storage layer. Raise UsageError if inputs to be copied have already been deleted."""
        metadata, fleet = self._manifest.metadata, self._request.fleet
        is_copied = self._request.inputs == "copy"
        return ForkOrder(
            name=self._request.name,
            parent_name=self._parent_name,
            is_live=self._request.is_live,
            created=created,
            fleet=metadata.fleet if fleet is None else fleet.name,
            config_hash=metadata.config_hash if fleet is None else fleet.definition_digest().hex(),
            gone=sorted(self._gone),
            changed=self._settled | self._changed,
            inputs=self._whole(self._pending) if is_copied else (),
            recorded=self._recorded(),
            dependencies=merged({"": self._report}) if self._request.accepts_changes and self._report else None,
        )

    def _recorded(self) -> RecordedAnswers | None:
        answers = self._request.answers
        if answers == "none":
            return None
        return RecordedAnswers(self._collected.answers, answers == "only", self._request.is_live)

    def _whole(self, inputs: list[LoggedInput]) -> list[LoggedInput]:
        gap = first_gap(inputs, self._consumed)
        if gap is not None:
            raise UsageError(
                f"input {gap[1]} of agent {gap[0]!r} is not kept any more, since newer snapshots have consumed it: fork with --inputs "
                "drop, or fork a later snapshot"
            )
        return inputs

    def report(self, made: Store, order: ForkOrder) -> Fork:
        """Return the description of the fork that has been written."""
        manifest, fleet = self._manifest, self._request.fleet
        agents = {line.agent: None for line in manifest.agents}
        copied = len(order.inputs)
        return Fork(
            name=order.name,
            store=made.location,
            cluster=made.store_id,
            parent=self._source.store_id,
            parent_name=order.parent_name,
            epoch=manifest.metadata.epoch,
            root=made.read_ref(manifest.metadata.epoch),
            agents=len(agents),
            messages=manifest.metadata.channel_state_messages,
            inputs_copied=copied,
            inputs_dropped=len(self._pending) - copied,
            changed=tuple([setting.place for some in self._settings.values() for setting in some]),
            effects_refused=self._effects_refused,
            not_begun=tuple(sorted(name for name in fleet.agents if name not in agents)) if fleet is not None else (),
            is_live=order.is_live,
            answers=len(self._collected.answers),
            lost_batches=self._collected.lost_batches,
            dependencies=self._changes,
        )
