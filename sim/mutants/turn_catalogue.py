"""Catalogue of the seeded bugs of durable turns."""

from msgspec.structs import replace

from snapline.sim.mutants import turns
from snapline.sim.mutants.registry import Mutant, crash_at, template

PLANS = template(patterns=("planning",), faults=crash_at("500ms", "900ms", "1.3s"))

TURN_MUTANTS: dict[str, Mutant] = {
    "turn-not-saved": Mutant(
        text="checkpoints do not hold durable turns",
        patches=turns.turn_not_saved,
        scenario=PLANS,
        oracle="workload",
        seed=0,
    ),
    "stash-not-saved": Mutant(
        text="checkpoints do not hold messages that durable turns have deferred",
        patches=turns.stash_not_saved,
        scenario=PLANS,
        oracle="restored",
        seed=0,
    ),
    "state-from-the-middle": Mutant(
        text="the image of an agent in a durable turn is of its state as it is then",
        patches=turns.state_from_the_middle,
        scenario=PLANS,
        oracle="workload",
        seed=0,
    ),
    "journal-without-its-beginning": Mutant(
        text="a journal that comes back lacks what was sealed of it",
        patches=turns.journal_without_its_beginning,
        scenario=replace(PLANS, limits={"journal_run": 1}),
        oracle="restored",
        seed=0,
    ),
    "segments-repeated": Mutant(
        text="a durable turn that is run again sends once more what it had sent",
        patches=turns.segments_repeated,
        scenario=PLANS,
        oracle="workload",
        seed=0,
    ),
    "steps-adopted-without-arguments": Mutant(
        text="a durable turn takes from the log what another turn of its number had asked for with other arguments",
        patches=turns.adopted_without_arguments,
        scenario=PLANS,
        oracle="workload",
        seed=1,
    ),
    "steps-adopted-with-another-past": Mutant(
        text="a durable turn takes from the log what it had behind other answers",
        patches=turns.prefix_not_compared,
        scenario=PLANS,
        oracle="workload",
        seed=1,
    ),
    "steps-adopted-in-another-state": Mutant(
        text="a durable turn takes from the log what it had when it had begun in another state",
        patches=turns.state_not_in_the_seed,
        scenario=PLANS,
        oracle="workload",
        seed=1,
    ),
    "turn-number-not-saved": Mutant(
        text="checkpoints do not say how many durable turns have begun",
        patches=turns.turn_number_not_saved,
        scenario=PLANS,
        oracle="steps",
        seed=3,
    ),
    "step-before-its-batch": Mutant(
        text="a durable turn goes on from a step before the log holds it",
        patches=turns.goes_on_before_its_batch,
        scenario=PLANS,
        oracle="steps",
        seed=4,
    ),
    "sends-lost-before-adopted-steps": Mutant(
        text="what a durable turn sends before a step that the log knows is thrown away",
        patches=turns.sends_lost_before_adopted_steps,
        scenario=PLANS,
        oracle="workload",
        seed=1,
    ),
    "entry-after-its-checkpoint": Mutant(
        text="a checkpoint lacks the step that ended last before it",
        patches=turns.entry_after_its_checkpoint,
        scenario=PLANS,
        oracle="workload",
        seed=0,
    ),
    "reply-of-an-undone-past": Mutant(
        text="a durable turn that is run again is answered what a call was answered before the recovery",
        patches=turns.reply_of_an_undone_past,
        scenario=PLANS,
        oracle="workload",
        seed=1,
    ),
    "resumed-while-held": Mutant(
        text="an agent that is held, or frozen, goes on with its durable turn",
        patches=turns.resumed_while_held,
        scenario=template("koo-toueg", patterns=("planning",), faults=crash_at("500ms", "900ms", "1.3s")),
        oracle="core",
        seed=0,
    ),
}
