"""Mutants of durable turns and effects (R3, G12). In some of these mutants, effects are called at the wrong time or with the wrong key, are
saved incompletely, or are undone wrongly."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.sim.mutants.registry import HOSTS, Mutant, crash_at, template

from snapline.agent_runtime import sagas as asked
from snapline.agent_runtime.context import Context
from snapline.agent_runtime.durable import DONE, LoggedSteps, TurnJournal, approval_id, call_id, rolled, turn_seed
from snapline.agent_runtime.host import approvals, epoch_files, turns
from snapline.agent_runtime.host.agent_effects import COMPENSATED, AgentEffects
from snapline.agent_runtime.host.agent_io import AgentOutputs
from snapline.agent_runtime.host.durable_turns import DurableTurns
from snapline.agent_runtime.host.entries import IDLE, Entry, OperatorCommandEntry, Stage
from snapline.agent_runtime.host.host_effects import Effects
from snapline.agent_runtime.host.host_log import StepLog
from snapline.agent_runtime.host.host_state import DurableTurn, LocalAgent
from snapline.agent_runtime.host.mailboxes import Mailboxes
from snapline.agent_runtime.host.turns import Turns
from snapline.agent_runtime.sagas import Saga
from snapline.sim.scenario import ClientsPart, FleetPart, LivenessPart, PatternPart, RunPart, StepsPart
from snapline.sim.world.product_patches import Patch
from snapline.storage.packs.checkpoint import AgentCheckpoint, JournalEntry, SavedEffects


def _control_without(**fields: Any) -> list[Patch]:
    original = LocalAgent.control

    def control(self: LocalAgent, *arguments: Any) -> Any:
        return msgspec.structs.replace(original(self, *arguments), **fields)

    return [(LocalAgent, "control", control)]


def turn_not_saved() -> list[Patch]:
    return _control_without(turn=None, sealed=None)


def stash_not_saved() -> list[Patch]:
    return _control_without(stash=[])


def state_from_the_middle() -> list[Patch]:
    original = Turns._image

    def image(self: Turns, agent: str, running: Any, base: Any) -> Any:
        flight, running.flight = running.flight, None
        try:
            return original(self, agent, running, base)
        finally:
            running.flight = flight

    return [(Turns, "_image", image)]


def journal_without_its_beginning() -> list[Patch]:
    def unsealed(checkpoint: AgentCheckpoint, content: bytes) -> AgentCheckpoint:
        return msgspec.structs.replace(checkpoint, saved_journal=msgspec.UNSET)

    return [(epoch_files, "whole_turn", unsealed)]


def adopted_without_arguments() -> list[Patch]:
    """Reuse a logged step's outcome without comparing the step's arguments or the turn's seed."""
    original = LoggedSteps.__init__

    def every(self: LoggedSteps, seed: bytes, logged: Any) -> None:
        original(self, seed, [msgspec.structs.replace(each, seed=seed) for each in logged])

    def find(self: LoggedSteps, place: int, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        entries = [each.entry for each in self._by_place.get(place, ()) if each.prefix == self._prefix]
        return next((entry for entry in entries if (entry.kind, entry.name) == (kind, name)), None)

    return [(LoggedSteps, "__init__", every), (LoggedSteps, "find", find)]


def members_behind_results() -> list[Patch]:
    """Log the steps of a group with the results of the steps that have ended before, so that a rerun does not recognize them."""
    original = StepLog.put_member

    def put_member(self: StepLog, agent: LocalAgent, turn: DurableTurn, index: int, decision: Any) -> None:
        members, put, log = turn.members, self._log.put, self._log

        def put_with_results(pending: Any) -> None:
            prefix = rolled(self._prefix_of(turn, len(turn.journal)), members[:index])
            if pending.entry.place == len(turn.journal) + index:
                pending.entry = replace(pending.entry, prefix=prefix)
            put(pending)

        log.put = put_with_results  # type: ignore[method-assign]
        try:
            original(self, agent, turn, index, decision)
        finally:
            del log.put

    return [(StepLog, "put_member", put_member)]


def group_before_its_batch() -> list[Patch]:
    """Let a durable turn continue from a group before the log contains its steps."""
    return _before_the_log(lambda turn: turn.group > 0)


def race_not_decided() -> list[Patch]:
    """Log the step that won a race, and not that it won."""
    original = StepLog.put_member

    def put_member(self: StepLog, agent: LocalAgent, turn: DurableTurn, index: int, decision: Any) -> None:
        original(self, agent, turn, index, None)

    return [(StepLog, "put_member", put_member)]


def race_decided_by_results() -> list[Patch]:
    """Let a rerun take every logged step of a race, whatever was decided."""
    original = TurnJournal._find_group

    def find_group(self: TurnJournal, first: int, members: Any, ends_at: Any) -> Any:
        return original(self, first, members, "all")

    return [(TurnJournal, "_find_group", find_group)]


def time_limits_of_losers_stay() -> list[Patch]:
    return [(DurableTurns, "_forget_requests", lambda self, agent, turn: None)]


def rejected_after_it_has_left() -> list[Patch]:
    """Let the guard of a durable turn check its output when its handler has returned, and not before each wait."""
    original = Context.check_output

    def check_output(self: Context, *, is_over: bool = False) -> None:
        if is_over:
            original(self, is_over=True)

    return [(Context, "check_output", check_output)]


def _before_the_log(matches: Callable[[DurableTurn], bool]) -> list[Patch]:
    original = DurableTurns.next_entry

    def next_entry(self: DurableTurns, agent: LocalAgent) -> Entry | None:
        turn = agent.turn
        if turn is None or not matches(turn):
            return original(self, agent)
        unlogged, turn.unlogged = turn.unlogged, 0
        try:
            return original(self, agent)
        finally:
            turn.unlogged = unlogged

    return [(DurableTurns, "next_entry", next_entry)]


def prefix_not_compared() -> list[Patch]:
    def find(self: LoggedSteps, place: int, kind: str, name: str, digest: bytes) -> JournalEntry | None:
        wanted = kind, name, digest
        entries = [each.entry for each in self._by_place.get(place, ())]
        return next((entry for entry in entries if (entry.kind, entry.name, entry.digest) == wanted), None)

    return [(LoggedSteps, "find", find)]


def turn_number_not_saved() -> list[Patch]:
    original = LocalAgent.control

    def control(self: LocalAgent, *arguments: Any) -> Any:
        control = original(self, *arguments)
        return msgspec.structs.replace(control, durable_turns=int(control.turn is not None))

    return [(LocalAgent, "control", control)]


def state_not_in_the_seed() -> list[Patch]:
    def seed(*whose: Any, sender: str, payload: bytes, state: bytes) -> bytes:
        return turn_seed(*whose, sender=sender, payload=payload, state=b"")

    return [(turns, "turn_seed", seed)]


def goes_on_before_its_batch() -> list[Patch]:
    return _before_the_log(lambda turn: turn.group == 0)


def sends_lost_before_adopted_steps() -> list[Patch]:
    original = TurnJournal.wait

    async def wait(self: TurnJournal, *asked: Any, **more: Any) -> JournalEntry:
        entry = await original(self, *asked, **more)
        self.has_left = True
        return entry

    return [(TurnJournal, "wait", wait)]


def segments_repeated() -> list[Patch]:
    """Repeat the messages that a durable turn has already sent."""

    async def wait(
        self: Context, kind: str, name: str, digest: bytes, *, timeout_s: float | None = None, work: Any = None
    ) -> JournalEntry:
        assert self.journal is not None
        timeout_ns = None if timeout_s is None else round(timeout_s * 1e9)
        return await self.journal.wait(kind, name, digest, timeout_ns=timeout_ns, work=work)

    return [(Context, "_wait", wait)]


def entry_after_its_checkpoint() -> list[Patch]:
    """Omit the last completed step from a checkpoint, although messages sent after that step have left."""
    original = LocalAgent.control

    def control(self: LocalAgent, *arguments: Any) -> Any:
        control = original(self, *arguments)
        turn = control.turn
        if turn is None or turn.waits is None or not turn.journal or turn.journal[-1].kind != "step":
            return control
        last = turn.journal[-1]
        waits = JournalEntry(last.kind, last.name, last.digest)
        return msgspec.structs.replace(
            control, turn=msgspec.structs.replace(turn, journal=turn.journal[:-1], waits=waits)
        )

    return [(LocalAgent, "control", control)]


def reply_of_an_undone_past() -> list[Patch]:
    """Reuse the remembered answer of a call from an undone history when the turn reaches the call again."""
    original = DurableTurns._find
    known: dict[tuple[str, bytes], JournalEntry] = {}

    def find(self: DurableTurns, agent: LocalAgent, turn: DurableTurn) -> bool:
        place, waits = len(turn.journal), turn.waits
        key = agent.id, call_id(turn.seed, place)
        if waits is not None and waits.kind == "call" and key in known:
            self._finish(agent, turn, place, waits, DONE, known[key].result, known[key].sender)
            return True
        is_found = original(self, agent, turn)
        if is_found and waits is not None and waits.kind == "call":
            known[key] = turn.journal[-1]
        return is_found

    return [(DurableTurns, "_find", find)]


def answers_spent_before_their_questions() -> list[Patch]:
    """Tell people that their answers are taken although no turn has come to its question."""
    return [(approvals, "settled", lambda agent, entry: approvals.reply_to_taken())]


def answers_of_another_past() -> list[Patch]:
    """Derive the ids of approvals from their places and details alone."""
    return [(approvals, "approval_id", lambda seed, place, digest: approval_id(bytes(16), place, digest))]


def next_turn_within_a_command() -> list[Patch]:
    """Let the checkpoint for who waits for a command's outcome begin the agent's next turn before the command is finished."""
    original = Mailboxes.consume_own

    def consume_own(self: Mailboxes, entry: Entry, **options: Any) -> None:
        agent = options.get("agent")
        if isinstance(entry, OperatorCommandEntry) and agent is not None and agent.stage is Stage.BETWEEN_SEGMENTS:
            agent.stage = IDLE
        original(self, entry, **options)

    return [(Mailboxes, "consume_own", consume_own)]


def resumed_while_held() -> list[Patch]:
    """Let an agent that is held or frozen continue its durable turn."""
    original = vars(LocalAgent)["may_start"].fget

    def may_start(self: LocalAgent) -> bool:
        is_held, self.is_held = self.is_held, self.is_held and self.turn is None
        try:
            return bool(original(self))
        finally:
            self.is_held = is_held

    return [(LocalAgent, "may_start", property(may_start))]


GROUPS = template(
    patterns=("stepping",),
    faults=crash_at("500ms", "900ms", "1.3s"),
    clients=ClientsPart(count=3, inputs=60, pause="1ms"),
)
PLANS = template(patterns=("planning",), faults=crash_at("500ms", "900ms", "1.3s"))

TURN_MUTANTS: dict[str, Mutant] = {
    "turn-not-saved": Mutant(
        text="checkpoints do not hold durable turns",
        patches=turn_not_saved,
        scenario=PLANS,
        oracle="workload",
        seed=1,
    ),
    "stash-not-saved": Mutant(
        text="checkpoints do not hold messages that durable turns have deferred",
        patches=stash_not_saved,
        scenario=PLANS,
        oracle="restored",
        seed=3,
    ),
    "state-from-the-middle": Mutant(
        text="the image of an agent in a durable turn is of its state as it is then",
        patches=state_from_the_middle,
        scenario=PLANS,
        oracle="workload",
        seed=0,
    ),
    "journal-without-its-beginning": Mutant(
        text="a journal that comes back lacks what was sealed of it",
        patches=journal_without_its_beginning,
        scenario=replace(PLANS, limits={"journal_run": 1}),
        oracle="restored",
        seed=0,
    ),
    "segments-repeated": Mutant(
        text="a durable turn that is run again sends once more what it had sent",
        patches=segments_repeated,
        scenario=PLANS,
        oracle="workload",
        seed=0,
    ),
    "steps-adopted-without-arguments": Mutant(
        text="a durable turn takes from the log what another turn of its number had asked for with other arguments",
        patches=adopted_without_arguments,
        scenario=PLANS,
        oracle="workload",
        seed=1,
    ),
    "steps-adopted-with-another-past": Mutant(
        text="a durable turn takes from the log what it had behind other answers",
        patches=prefix_not_compared,
        scenario=PLANS,
        oracle="workload",
        seed=1,
    ),
    "steps-adopted-in-another-state": Mutant(
        text="a durable turn takes from the log what it had when it had begun in another state",
        patches=state_not_in_the_seed,
        scenario=PLANS,
        oracle="workload",
        seed=1,
    ),
    "turn-number-not-saved": Mutant(
        text="checkpoints do not say how many durable turns have begun",
        patches=turn_number_not_saved,
        scenario=PLANS,
        oracle="steps",
        seed=4,
    ),
    "step-before-its-batch": Mutant(
        text="a durable turn goes on from a step before the log holds it",
        patches=goes_on_before_its_batch,
        scenario=PLANS,
        oracle="steps",
        seed=4,
    ),
    "members-behind-results": Mutant(
        text="steps of a group are logged with the results of others, which may be missing when the turn runs again",
        patches=members_behind_results,
        scenario=GROUPS,
        oracle="steps",
        seed=8,
    ),
    "group-before-its-batch": Mutant(
        text="a durable turn goes on from a group of steps before the log holds them",
        patches=group_before_its_batch,
        scenario=GROUPS,
        oracle="steps",
        seed=7,
    ),
    "race-not-decided": Mutant(
        text="the log does not say which step came first in a race",
        patches=race_not_decided,
        scenario=PLANS,
        oracle="steps",
        seed=10,
    ),
    "race-decided-by-results": Mutant(
        text="a race that runs again takes each step that the log holds",
        patches=race_decided_by_results,
        scenario=PLANS,
        oracle="steps",
        seed=4,
    ),
    "time-limits-of-losers-stay": Mutant(
        text="a sleep that has lost a race ends later, when nobody waits for it",
        patches=time_limits_of_losers_stay,
        scenario=PLANS,
        oracle="workload",
        seed=0,
    ),
    "rejected-after-it-has-left": Mutant(
        text="a guard checks what a durable turn sends when the turn is over, and its messages have left before",
        patches=rejected_after_it_has_left,
        scenario=PLANS,
        oracle="workload",
        seed=0,
    ),
    "answers-spent-before-their-questions": Mutant(
        text="people learn that an answer is taken although no turn has come to its question",
        patches=answers_spent_before_their_questions,
        scenario=GROUPS,
        oracle="approvals",
        seed=0,
    ),
    "answers-of-another-past": Mutant(
        text="an answer to an approval counts for the same question of other turns",
        patches=answers_of_another_past,
        scenario=GROUPS,
        oracle="approvals",
        seed=0,
    ),
    "next-turn-within-a-command": Mutant(
        text="an agent's next turn begins before the command of an operator is finished, and another one after it",
        patches=next_turn_within_a_command,
        scenario=GROUPS,
        oracle="restored",
        seed=0,
    ),
    "sends-lost-before-adopted-steps": Mutant(
        text="what a durable turn sends before a step that the log knows is thrown away",
        patches=sends_lost_before_adopted_steps,
        scenario=PLANS,
        oracle="workload",
        seed=2,
    ),
    "entry-after-its-checkpoint": Mutant(
        text="a checkpoint lacks the step that ended last before it",
        patches=entry_after_its_checkpoint,
        scenario=PLANS,
        oracle="workload",
        seed=12,
    ),
    "reply-of-an-undone-past": Mutant(
        text="a durable turn that is run again is answered what a call was answered before the recovery",
        patches=reply_of_an_undone_past,
        scenario=PLANS,
        oracle="workload",
        seed=4,
    ),
    "resumed-while-held": Mutant(
        text="an agent that is held, or frozen, goes on with its durable turn",
        patches=resumed_while_held,
        scenario=template("koo-toueg", patterns=("planning",), faults=crash_at("500ms", "900ms", "1.3s")),
        oracle="core",
        seed=0,
    ),
}


def before_its_release() -> list[Patch]:
    """Call an effect at once, before its request is released."""
    return [(AgentOutputs, "holds", lambda self, number: False)]


def key_per_incarnation() -> list[Patch]:
    """Use different keys in each incarnation of an agent."""
    original = Effects._call_if_released

    def call(self: Effects, agent: LocalAgent, *rest: Any) -> None:
        cluster, self._shared.cluster = self._shared.cluster, f"life-{agent.incarnation}"
        original(self, agent, *rest)
        self._shared.cluster = cluster

    return [(Effects, "_call_if_released", call)]


def outcome_not_logged() -> list[Patch]:
    """Continue the turn after an effect without logging the effect's outcome."""
    original = StepLog.put

    def put(self: StepLog, agent: LocalAgent, turn: Any) -> None:
        if turn.journal[-1].kind != "effect":
            original(self, agent, turn)

    return [(StepLog, "put", put)]


def keys_not_saved() -> list[Patch]:
    """Save the open effect and the completed effects in checkpoints, but no keys."""
    original = AgentEffects.saved

    def saved(self: AgentEffects, *, is_grouped: bool) -> SavedEffects | None:
        effects = original(self, is_grouped=is_grouped)
        return effects if effects is None else SavedEffects([], effects.made, effects.open)

    return [(AgentEffects, "saved", saved)]


def key_adopted_without_arguments() -> list[Patch]:
    """Return the recorded outcome of a key to any request with this key, regardless of the request's arguments."""
    original = AgentEffects.settled

    def settled(self: AgentEffects, intent: Any, digest: bytes, name: str) -> tuple[str, bytes] | None:
        key_record = self.keys.get(self.identity(intent)[0])
        return original(self, intent, digest if key_record is None else key_record.digest, name)

    return [(AgentEffects, "settled", settled)]


def undone_and_adopted() -> list[Patch]:
    """Keep the key of a compensated effect valid."""

    def undone(self: AgentEffects, opened: Any) -> None:
        self.made = [made for made in self.made if made.key != opened.undoes]

    return [(AgentEffects, "_undone", undone)]


def adopted_and_undone() -> list[Patch]:
    """Undo an effect when the first turn's dead letter is retried, although a later turn has taken over the effect."""
    return [(AgentEffects, "_is_in_effect", lambda self, intent: False)]


def same_key_after_undoing() -> list[Patch]:
    """Give a repeated effect the same key as the compensated effect."""

    def identity(self: AgentEffects, intent: Any) -> tuple[str, int]:
        key, generation = original(self, intent)
        known = self.keys.get(key)
        return key, generation - (not intent.is_undo and known is not None and known.outcome == COMPENSATED)

    original = AgentEffects.identity
    return [(AgentEffects, "identity", identity)]


def failed_turn_oldest_first() -> list[Patch]:
    """Undo the effects of a failed turn in the order in which they were done, oldest first."""
    original = AgentEffects.turn_ended

    def ended(self: AgentEffects, dead_letter: int = 0) -> Any:
        return original(self, dead_letter)[::-1]

    return [(AgentEffects, "turn_ended", ended)]


def failed_turn_not_undone() -> list[Patch]:
    """Do not undo the effects of a failed turn."""
    return [(AgentEffects, "turn_ended", _all_forgotten)]


def _all_forgotten(self: AgentEffects, dead_letter: int = 0) -> Any:
    made, self.made = self.made, []
    return [] if dead_letter else made


def saga_oldest_first() -> list[Patch]:
    """Undo the effects of a saga in the order in which they were done, oldest first."""
    original = Saga._undo_all

    async def undo_all(self: Saga, error: BaseException) -> None:
        self._made.reverse()
        await original(self, error)

    return [(Saga, "_undo_all", undo_all)]


def saga_not_undone() -> list[Patch]:
    """Do not undo the effects of a failed saga."""
    return [(asked.Saga, "add", lambda self, made: None)]


def undone_by_ends() -> list[Patch]:
    """Undo the effects of a group in the reverse order of their ends, and not of their places."""
    return [(AgentEffects, "group_ended", lambda self, identities: None)]


def undone_without_the_failed() -> list[Patch]:
    """Treat an effect that has raised an exception as not done, and do not undo the effect."""
    original = AgentEffects.end

    def end(self: AgentEffects, place: int, *, is_done: bool, **ended: Any) -> None:
        opened = self.open[place].opened
        original(self, place, is_done=is_done, **ended)
        if not is_done:
            self.made = [made for made in self.made if made.key != opened.key]

    return [(AgentEffects, "end", end)]


PAID = replace(
    template(
        patterns=("paying",),
        faults=crash_at("500ms", "900ms", "2.3s", "5s"),
        clients=ClientsPart(is_settling=True),
    ),
    fleet=FleetPart(hosts=HOSTS, pattern=PatternPart(messages=160)),
    steps=StepsPart(late_per_mille=60, lost_per_mille=60, failed_per_mille=100),
    run=RunPart(until="20s"),
    liveness=LivenessPart(within="300s"),
)


def _of(text: str, patches: Callable[[], list[Patch]], oracle: str, seed: int = 0) -> Mutant:
    return Mutant(text=text, patches=patches, scenario=PAID, oracle=oracle, seed=seed)


EFFECT_MUTANTS: dict[str, Mutant] = {
    "effect-before-its-release": _of(
        "an effect is called before its intent is released", before_its_release, "effects"
    ),
    "effect-with-a-key-of-its-life": _of(
        "an effect is called again under another key after a recovery", key_per_incarnation, "effects"
    ),
    "effect-outcome-not-logged": _of(
        "a turn goes on from an effect whose outcome no log holds", outcome_not_logged, "effects"
    ),
    "effect-keys-not-saved": _of(
        "checkpoints do not hold the keys of effects that have ended", keys_not_saved, "effects"
    ),
    "effect-adopted-without-arguments": _of(
        "a key is adopted for an effect with other arguments", key_adopted_without_arguments, "workload"
    ),
    "closed-key-adopted": _of("who asks for what was undone is told that it is done", undone_and_adopted, "workload"),
    "same-key-after-undoing": _of("what was undone is done anew under its old key", same_key_after_undoing, "effects"),
    "adopted-and-undone": _of(
        "what a later turn has taken over is undone when the letter of the first one is retried",
        adopted_and_undone,
        "workload",
        seed=8,
    ),
    "failed-turn-undone-oldest-first": _of(
        "what a failed turn has done is undone oldest first", failed_turn_oldest_first, "stub"
    ),
    "failed-turn-not-undone": _of("what a failed turn has done is not undone", failed_turn_not_undone, "workload"),
    "saga-undone-oldest-first": _of("a saga undoes what it has done oldest first", saga_oldest_first, "stub"),
    "saga-not-undone": _of("a saga that fails undoes nothing", saga_not_undone, "workload"),
    "group-undone-by-ends": Mutant(
        text="effects of a group are undone in the reverse order in which they ended",
        patches=undone_by_ends,
        scenario=template(
            patterns=("booking",), clients=ClientsPart(count=3, inputs=30, pause="20ms", is_settling=True)
        ),
        oracle="stub",
        seed=0,
    ),
    "failed-effect-not-undone": _of(
        "an effect that has raised counts as not done, and is not undone", undone_without_the_failed, "stub", 28
    ),
}
