"""Redaction of agents' data: of a state, a message, an output or the data of an effect only the size and a digest are shown.

A digest of a short secret would reveal it to a brute-force search, so digests are keyed, and the key is discarded: equal values have
equal digests within one file, and a digest reveals nothing elsewhere.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence

import msgspec

from snapline.agent_runtime.effect_ledger import Effect
from snapline.agent_runtime.output_reading import Output
from snapline.view.cut_page import CutAgent, CutChannel, CutFacts, CutMessage, Plain
from snapline.view.formatting import size
from snapline.view.pending_work_page import NewestOutputs, WaitingFacts

KEPT = ("number", "sender", "receiver", "agent", "kind", "remaining_s", "entries")
"""Kept fields of a timer, a parked message, a dead letter and the like; all others may be private."""

DIGITS = 12
"""Length of a digest: enough to avoid accidental collisions within a file."""


class Redaction:
    """Removes contents; create one for each file."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def told(self, value: object) -> str:
        """Return the text that replaces the value."""
        data = msgspec.json.encode(msgspec.to_builtins(value, str_keys=True), order="deterministic")
        digest = hmac.new(self._key, data, hashlib.sha256).hexdigest()[:DIGITS]
        return f"left out: {size(len(data))} of JSON, digest {digest}"

    def cut(self, cut: CutFacts, *, kept: int = 0, messages_kept: bool = False) -> CutFacts:
        """Return the snapshot without contents, except those of the first `kept` agents, and of messages with `messages_kept`."""
        agents = [each if number < kept else self._agent(each) for number, each in enumerate(cut.agents)]
        channels = cut.channels if messages_kept else tuple(self._channel(each) for each in cut.channels)
        return msgspec.structs.replace(cut, agents=tuple(agents), channels=channels)

    def waiting(self, facts: WaitingFacts) -> WaitingFacts:
        """Return what waits, and for what, without contents."""
        agents = tuple(
            msgspec.structs.replace(each, problem=self._text(each.problem), waits_for=self._text(each.waits_for))
            for each in facts.agents.agents
        )
        return msgspec.structs.replace(
            facts,
            agents=msgspec.structs.replace(facts.agents, agents=agents),
            outputs=self._outputs(facts.outputs),
            effects=self.effects(facts.effects),
        )

    def effects(self, effects: Iterable[Effect]) -> list[Effect]:
        """Return agents, names and fates, without contents."""
        return [
            msgspec.structs.replace(
                each, key=self._text(each.key), arguments=self._text(each.arguments), result=self._text(each.result)
            )
            for each in effects
        ]

    def _text(self, text: str) -> str:
        return self.told(text) if text else ""

    def _agent(self, agent: CutAgent) -> CutAgent:
        state = agent.state if agent.is_unborn or agent.state is None else self.told(agent.state)
        turn = None if agent.durable_turn is None else self._item(agent.durable_turn)
        lists: dict[str, Sequence[Plain]] = {
            name: tuple(self._item(each) for each in getattr(agent, name))
            for name in ("outbox", "spawns", "timers", "put_off", "dead_letters")
        }
        return msgspec.structs.replace(agent, state=state, durable_turn=turn, **lists)

    def _item(self, item: Plain) -> Plain:
        kept = {name: item[name] for name in KEPT if name in item}
        rest = {name: value for name, value in item.items() if name not in kept}
        return {**kept, "content": self.told(rest)} if rest else kept

    def _channel(self, channel: CutChannel) -> CutChannel:
        messages = tuple(CutMessage(each.number, self.told(each.message)) for each in channel.in_transit)
        return msgspec.structs.replace(channel, in_transit=messages)

    def _outputs(self, newest: NewestOutputs) -> NewestOutputs:
        topics: dict[str, Sequence[Output]] = {
            topic: tuple(msgspec.structs.replace(each, message=self.told(each.message)) for each in outputs)
            for topic, outputs in newest.topics.items()
        }
        return msgspec.structs.replace(newest, topics=topics)
