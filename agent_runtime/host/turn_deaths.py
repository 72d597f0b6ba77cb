"""The part of a host core that knows in which turns processes have died. A message that has killed more processes than its limit gets no more turns.

The coordinator counts the deaths (`coordinator/state/operation_rules.py`), and sends the counts with each plan. A turn is identified by its agent and a
digest of its message and sender, which survive any recovery. The message's number on its channel does not: a sender that was rolled back may send in
another order. So equal messages of one sender count as one.
"""

import zlib

from snapline.agent_runtime.host.host_state import HostState
from snapline.agent_runtime.message_encoding import without_tail
from snapline.messages import host_messages as msg
from snapline.messages.payloads import MARK
from snapline.messages.turn_deaths import CAPTURE, TurnDeath
from snapline.storage.disk.record import digest_of

DIGEST_BYTES = 8

HEAD_BYTES, END_BYTES = 1024, 65_536
"""Sizes of the head and the end that are digested of a larger message: digesting all of 64 MiB would take 30 ms."""

_SEPARATELY_DIGESTED = (CAPTURE, "letter")
"""Kinds of turns with separate digests: an operator's retry of a dead letter always runs, whatever the message did before."""


class MessageSample:
    """The parts of a message that represent it."""

    __slots__ = ("end", "head", "size_bytes")

    def __init__(self, payload: bytes) -> None:
        plain = without_tail(payload) if payload.find(MARK, 0, HEAD_BYTES) >= 0 else payload
        self.head = plain[:HEAD_BYTES]
        self.size_bytes = len(plain)
        self.end = zlib.crc32(plain[-END_BYTES:])


def digest_of_turn(what: str, sender: str, sample: MessageSample) -> bytes:
    """Return a digest that is the same for the same message of the same sender."""
    prefix = what if what in _SEPARATELY_DIGESTED else ""
    head = f"{prefix}\0{sender}\0{sample.size_bytes}\0{sample.end}\0".encode()
    return digest_of(head + sample.head)[:DIGEST_BYTES]


class TurnDeaths:
    """Attributes:
    known: (agent, digest) → record in the plan. Almost always empty: check this first.
    """

    def __init__(self, shared: HostState) -> None:
        self._shared = shared
        self.known: dict[tuple[str, bytes], TurnDeath] = {}
        self._survived: list[msg.TurnSurvived] = []

    def told(self, deaths: tuple[TurnDeath, ...]) -> None:
        """Take over the deaths of a new plan."""
        self.known.clear()
        self.known.update({(death.agent, death.digest): death for death in deaths})
        self._survived.clear()

    def welcomed(self) -> None:
        """Repeat what the coordinator may not have received."""
        self._shared.out.extend(self._survived)

    def against(self, agent: str, what: str, sender: str, payload: bytes) -> TurnDeath | None:
        """Return the deaths that deny this turn; None: it may run."""
        if not any(name == agent for name, _ in self.known):
            return None
        death = self.known.get((agent, digest_of_turn(what, sender, MessageSample(payload))))
        return None if death is None or death.times <= death.limit else death

    def survived(self, agent: str, what: str, sender: str, payload: bytes) -> None:
        """Report a turn that has succeeded. After a retry the message itself may have turns again."""
        sample = MessageSample(payload)
        for kind in dict.fromkeys((what, "message") if what == "letter" else (what,)):
            key = agent, digest_of_turn(kind, sender, sample)
            if self.known.pop(key, None) is not None:
                message = msg.TurnSurvived(*key)
                self._survived.append(message)
                self._shared.out.append(message)
