"""Catalogue of the seeded bugs of effects."""

from collections.abc import Callable

from msgspec.structs import replace

from snapline.sim.mutants import effects
from snapline.sim.mutants.registry import HOSTS, Mutant, crash_at, template
from snapline.sim.scenario import ClientsPart, FleetPart, LivenessPart, PatternPart, RunPart, StepsPart
from snapline.sim.world.product_patches import Patch

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
        "an effect is called before its intent is released", effects.before_its_release, "effects"
    ),
    "effect-with-a-key-of-its-life": _of(
        "an effect is called again under another key after a recovery", effects.key_per_incarnation, "effects"
    ),
    "effect-outcome-not-logged": _of(
        "a turn goes on from an effect whose outcome no log holds", effects.outcome_not_logged, "effects"
    ),
    "effect-keys-not-saved": _of(
        "checkpoints do not hold the keys of effects that have ended", effects.keys_not_saved, "effects"
    ),
    "effect-adopted-without-arguments": _of(
        "a key is adopted for an effect with other arguments", effects.key_adopted_without_arguments, "workload"
    ),
    "closed-key-adopted": _of(
        "who asks for what was undone is told that it is done", effects.undone_and_adopted, "workload"
    ),
    "same-key-after-undoing": _of(
        "what was undone is done anew under its old key", effects.same_key_after_undoing, "effects"
    ),
    "adopted-and-undone": _of(
        "what a later turn has taken over is undone when the letter of the first one is retried",
        effects.adopted_and_undone,
        "workload",
        seed=8,
    ),
    "failed-turn-undone-oldest-first": _of(
        "what a failed turn has done is undone oldest first", effects.failed_turn_oldest_first, "stub"
    ),
    "failed-turn-not-undone": _of(
        "what a failed turn has done is not undone", effects.failed_turn_not_undone, "workload"
    ),
    "saga-undone-oldest-first": _of("a saga undoes what it has done oldest first", effects.saga_oldest_first, "stub"),
    "saga-not-undone": _of("a saga that fails undoes nothing", effects.saga_not_undone, "workload"),
    "failed-effect-not-undone": _of(
        "an effect that has raised counts as not done, and is not undone", effects.undone_without_the_failed, "stub"
    ),
}
