"""Consequences of a deliberate restore, in sentences, for `snapline recovery restore` and for the confirmation page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from snapline.view.number_format import plural

if TYPE_CHECKING:
    from snapline.messages.answers import RestorePreview, TopicUndone

NAMED_MAX = 10


def named(what: str, of: Sequence[object]) -> str:
    """Return `epochs 4, 5, … are`, or `epoch 4 is`, for a sentence."""
    names = ", ".join(map(str, of[:NAMED_MAX])) + (", …" if len(of) > NAMED_MAX else "")
    return f"{what} {names} is" if len(of) == 1 else f"{what}s {names} are"


def undone_in_fleet(preview: "RestorePreview") -> list[str]:
    """Return the consequences for the fleet itself."""
    void_epochs, agents_gone, agents_back = preview.void_epochs, preview.agents_gone, preview.agents_back
    sentences = [f"epoch {preview.epoch}, taken {preview.created}, {preview.age_s} s ago"]
    sentences.append(f"{named('epoch', void_epochs)} void then" if void_epochs else "no later epoch is complete")
    sentences += [f"{named('agent', agents_gone)} gone: born later"] if agents_gone else []
    return sentences + ([f"{named('agent', agents_back)} there again, having left since"] if agents_back else [])


def undone_outside_fleet(preview: "RestorePreview") -> list[str]:
    """Return the consequences for what it has given to others."""
    sentences = [_taken_back(each) for each in preview.outputs]
    effects = ", ".join(preview.effects)
    return sentences + ([f"done outside since, and not taken back: {effects}"] if effects else [])


def _taken_back(topic: "TopicUndone") -> str:
    return f"topic {topic.topic}: {plural(topic.count, 'released output')} {'is' if topic.count == 1 else 'are'} taken back"
