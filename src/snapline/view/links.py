"""Links only to existing targets: agents stop, and snapshots are pruned, while pages still name them."""

from collections.abc import Iterable
from urllib.parse import quote

import msgspec

from snapline.view.markup import Child, tag

KEPT = ("complete", "void")
"""Statuses of ended epochs that can be viewed until they are forgotten."""


class Targets(msgspec.Struct, frozen=True):
    """Possible targets of links. None: link to everything; an exported file removes links to missing targets (`static_markup.py`)."""

    agents: frozenset[str] | None = None
    epochs: frozenset[int] | None = None

    def agent(self, agent: str) -> Child:
        """Return the agent's name, linked to its page; ids need no escaping."""
        return agent_link(agent) if self.agents is None or agent in self.agents else agent

    def epoch(self, epoch: int, words: str = "") -> Child:
        """Return its number, or `words`, linked to its page."""
        text = words or str(epoch)
        return tag("a", text, href=f"/epochs/{epoch}") if self.epochs is None or epoch in self.epochs else text


def agent_link(agent: str) -> Child:
    """Draw a link to an agent that takes turns."""
    return tag("a", agent, href=f"/agents/{quote(agent)}")


class EndedEpoch(msgspec.Struct, frozen=True):
    """Fields of the history that tell whether an epoch exists."""

    epoch: int = 0
    status: str = ""


class KeptEpochs(msgspec.Struct, frozen=True):
    """The document of `snapline snapshot history`; `stored`: epochs in the store; None: unknown."""

    epochs: tuple[EndedEpoch, ...] = ()
    stored: tuple[int, ...] | None = None


def shown_epochs(history: dict[str, object] | None) -> frozenset[int]:
    """Return the epochs whose snapshots have a page."""
    kept = KeptEpochs() if history is None else msgspec.convert(history, KeptEpochs)
    damaged = {each.epoch for each in kept.epochs if each.status == "condemned"}
    stored: Iterable[int] = (each.epoch for each in kept.epochs if each.status in KEPT)
    return frozenset(stored if kept.stored is None else kept.stored) - damaged


def restorable_epochs(history: dict[str, object]) -> frozenset[int]:
    """Return the epochs to which the fleet can go back."""
    return frozenset([each.epoch for each in msgspec.convert(history, KeptEpochs).epochs if each.status == "complete"])
