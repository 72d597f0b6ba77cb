"""Catalogue of the seeded bugs of dead letters and operator commands."""

from snapline.sim.mutants import letters
from snapline.sim.mutants.registry import Mutant, crash_at, template
from snapline.sim.scenario import ClientsPart

SETTLED = template(
    patterns=("failing", "random", "bank"),
    faults=crash_at("500ms", "900ms", "1.3s"),
    clients=ClientsPart(count=3, inputs=60, pause="10ms", is_settling=True),
)

LETTER_MUTANTS: dict[str, Mutant] = {
    "handled-letter-stays": Mutant(
        text="a dead letter that was retried and handled is still there",
        patches=letters.handled_letter_stays,
        scenario=SETTLED,
        oracle="letters",
        seed=0,
    ),
    "letter-numbers-not-saved": Mutant(
        text="checkpoints do not say which numbers dead letters have",
        patches=letters.numbers_not_saved,
        scenario=SETTLED,
        oracle="letters",
        seed=0,
    ),
    "dropped-letter-counts-as-handled": Mutant(
        text="a dead letter that is dropped counts as work that was done",
        patches=letters.dropped_counts_as_handled,
        scenario=SETTLED,
        oracle="letters",
        seed=0,
    ),
    "letter-known-by-its-number-alone": Mutant(
        text="a word hits whatever dead letter has its number when its turn comes",
        patches=letters.known_by_number_alone,
        scenario=SETTLED,
        oracle="letters",
        seed=10,
    ),
    "word-not-logged": Mutant(
        text="a dead letter is dropped as soon as somebody says so, and no log holds that",
        patches=letters.command_not_logged,
        scenario=SETTLED,
        oracle="letters",
        seed=0,
    ),
}
