"""Koo and Toueg's rounds: the coordinator asks agents for tentative checkpoints, and sends the outcome of the round.

An agent with a tentative checkpoint is blocked, hence held, until the outcome. The agent's own part is `protocols/koo_toueg.py`.
"""

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.agent_runtime.host.local_agent import LocalAgent
from snapline.agent_runtime.host.modes.logged_checkpoints import AgentPause, HoldReasons, Saving
from snapline.agent_runtime.host.plans import HostParts
from snapline.errors import ProtocolError
from snapline.messages import host_messages as msg
from snapline.protocols import koo_toueg as kt


class CheckpointAnswer(msgspec.Struct, frozen=True, gc=False):
    """One agent's answer to a round, on a request from `asker` ("" for an initiator).

    `number`: number of its tentative checkpoint, or 0; `requests`: agent to ask next → last number received from it.
    """

    agent: str
    asker: str
    is_willing: bool
    is_participant: bool
    number: int
    requests: dict[str, int]


class HostRounds:
    """See the module."""

    def __init__(self, parts: HostParts, holds: HoldReasons, saving: Saving, standing: AgentPause) -> None:
        self._shared = parts.shared
        self._holds = holds
        self._saving = saving
        self._standing = standing
        self._asked: list[tuple[str, kt.CheckpointRequested]] = []
        """Requests to agents whose turn runs."""

    def reset(self) -> None:
        """A plan ends the history of every agent here."""
        self._asked = []

    def on_request_checkpoints(self, event: msg.RequestCheckpoints) -> None:
        if event.plan != self._shared.plan or not self._shared.is_loaded:
            return
        answers: list[CheckpointAnswer] = []
        for agent_id, asker, number in zip(event.agents, event.askers, event.numbers, strict=True):
            request = kt.CheckpointRequested(event.epoch, asker or None, number)
            agent = self._shared.agents.get(agent_id)
            if agent is None:  # just being created: it has received nothing that concerns this round
                answers.append(CheckpointAnswer(agent_id, asker, True, False, 0, {}))
            elif agent.current is not None:
                self._asked.append((agent_id, request))
            else:
                answers += self._ask(agent, request)
        self._answer(event.epoch, answers)

    def ask_again(self, agent: LocalAgent) -> None:
        """Answer requests that arrived during the agent's turn."""
        requests = [request for agent_id, request in self._asked if agent_id == agent.id] if self._asked else []
        if requests and agent.current is None:
            self._asked = [entry for entry in self._asked if entry[0] != agent.id]
            for request in requests:
                self._answer(request.round, self._ask(agent, request))

    def _ask(self, agent: LocalAgent, asked: kt.CheckpointRequested) -> list[CheckpointAnswer]:
        logged = agent.logged
        if not agent.is_born or agent.is_failed or logged.rounds is None:
            return [CheckpointAnswer(agent.id, asked.by or "", not agent.is_failed, False, 0, {})]
        answers: list[CheckpointAnswer] = []
        for command in logged.rounds.handle(self._shared.now, asked):
            match command:
                case kt.TakeTentative():
                    self._saving.take(agent, "tentative", round_=command.round)
                    agent.is_held = True
                case kt.Answer():
                    number = logged.tentative.number if logged.tentative is not None else 0
                    answers.append(
                        CheckpointAnswer(
                            agent.id,
                            command.by or "",
                            command.is_willing,
                            command.is_participant,
                            number,
                            command.requests,
                        )
                    )
                case _:
                    raise AssertionError(f"a request does not lead to {command!r}")
        return answers

    def _answer(self, epoch: int, answers: list[CheckpointAnswer]) -> None:
        if answers:
            self._shared.out.append(
                _columns_of(answers, epoch=epoch, plan=self._shared.plan, host_start=self._shared.start)
            )

    def ended(self, event: msg.EndEpoch) -> None:
        """End a decided round: tentative checkpoints become permanent, or are dropped."""
        self._asked = [entry for entry in self._asked if entry[1].round > event.epoch]
        for agent in list(self._shared.agents.values()):
            if agent.logged.rounds is None:
                continue
            for command in agent.logged.rounds.handle(
                self._shared.now, kt.RoundDecided(event.epoch, event.is_complete)
            ):
                self._decide(agent, event.epoch, is_permanent=isinstance(command, kt.MakePermanent))
            if agent.is_held:
                self._holds.release(agent)
        self._standing.look()

    def _decide(self, agent: LocalAgent, epoch: int, *, is_permanent: bool) -> None:
        logged = agent.logged
        tentative, logged.tentative = logged.tentative, None
        if not is_permanent:
            return
        if tentative is None:
            raise ProtocolError(f"{agent.id}: round {epoch} is committed without its checkpoint")
        agent.checkpoints = tentative.number
        logged.settle(tentative.sent, tentative.received)
        if self._shared.trace_every:
            self._shared.out.append(ev.Trace("checkpoint", agent.id, "basic", tentative.number))


def _columns_of(answers: list[CheckpointAnswer], *, epoch: int, plan: int, host_start: int) -> msg.CheckpointsAnswered:
    requests = [(index, *request) for index, answer in enumerate(answers) for request in answer.requests.items()]
    return msg.CheckpointsAnswered(
        epoch=epoch,
        plan=plan,
        host_start=host_start,
        agents=tuple([answer.agent for answer in answers]),
        willing=tuple([answer.is_willing for answer in answers]),
        participants=tuple([answer.is_participant for answer in answers]),
        numbers=tuple([answer.number for answer in answers]),
        request_of=tuple([index for index, _, _ in requests]),
        request_to=tuple([receiver for _, receiver, _ in requests]),
        request_number=tuple([number for _, _, number in requests]),
        askers=tuple([answer.asker for answer in answers]),
    )
