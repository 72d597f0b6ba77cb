"""Consequences of a deliberate restore, in sentences: the same in `snapline recovery restore` and on the page that confirms it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from snapline.view.figures import plural

if TYPE_CHECKING:
    from snapline.messages.answers import RestorePreview, TopicUndone

NAMED_MAX = 10


def named(what: str, of: Sequence[object]) -> str:
    """`epochs 4, 5, … are`, or `epoch 4 is`: for a sentence."""
    names = ", ".join(map(str, of[:NAMED_MAX])) + (", …" if len(of) > NAMED_MAX else "")
    return f"{what} {names} is" if len(of) == 1 else f"{what}s {names} are"


def undone_here(preview: "RestorePreview") -> list[str]:
    """Return the consequences for the fleet itself."""
    void, gone, back = preview.void_epochs, preview.agents_gone, preview.agents_back
    told = [f"epoch {preview.epoch}, taken {preview.created}, {preview.age_s} s ago"]
    told.append(f"{named('epoch', void)} void then" if void else "no later epoch is complete")
    told += [f"{named('agent', gone)} gone: born later"] if gone else []
    return told + ([f"{named('agent', back)} there again, having left since"] if back else [])


def undone_outside(preview: "RestorePreview") -> list[str]:
    """Return the consequences for what it has given to others."""
    told = [_taken_back(each) for each in preview.outputs]
    effects = ", ".join(preview.effects)
    return told + ([f"done outside since, and not taken back: {effects}"] if effects else [])


def _taken_back(topic: "TopicUndone") -> str:
    return f"topic {topic.topic}: {plural(topic.count, 'released output')} {'is' if topic.count == 1 else 'are'} taken back"
