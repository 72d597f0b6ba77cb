"""Questions of a client about one agent: which host can answer, and asking until one has.

Only the agent's owner knows its live state and its description. Any host can read a saved state, so the owner is asked first, for its store is warm,
and others while it is lost. Asking changes nothing, so failed questions are repeated until the time is over.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from snapline.client.hosts import HostCalls, OfferFailed
from snapline.client.queues import OVER, Place
from snapline.errors import (
    AgentMissingError,
    CoordinatorUnavailableError,
    FleetEndedError,
    SnaplineError,
    UnknownOutcomeError,
    UsageError,
)
from snapline.messages.answers import LocateReply
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus, HostStatus
from snapline.messages.view_wire import encode_question, trace_question
from snapline.messages.views import STATE, WAITING, NotHereError, Question, RecentTrace, TraceWanted, WaitingAgents

Told = TypeVar("Told")

FIND_S_MAX = 2.0
"""Longest wait for the coordinator, which reads its memory: an election takes a second or two, and then it is asked again."""

WAIT_LEAST_S, WAIT_MOST_S = 0.05, 1.0
"""Wait before a host is asked again; doubled each time."""

ASK_S_MAX = 2.0
"""Longest wait for a host that is asked about all its agents: it reads its memory, and the others are reported without it."""


async def see(
    coordinator: Callable[[], CoordinatorClient], hosts: HostCalls, question: Question, limit_s: float
) -> bytes:
    """Ask until a host has answered; returns the document.

    Raises:
        UnknownOutcomeError: no host has, in time.
        AgentMissingError, FleetEndedError: no host will.
        UsageError: this client has no permission, or the question has no answer. Other errors of the host come as they are.
    """
    loop, wait_s, tries = asyncio.get_running_loop(), WAIT_LEAST_S, 0
    deadline_s, reason = loop.time() + limit_s, "nobody has answered yet"
    while (left_s := deadline_s - loop.time()) > 0:
        try:
            place = await _place(coordinator(), question, min(FIND_S_MAX, left_s), tries)
            return await hosts.show(*place, encode_question(question), max(deadline_s - loop.time(), 0.001))
        except OfferFailed as failed:
            if failed.is_final:
                raise UsageError(failed.reason) from failed
            reason = failed.reason
        except (CoordinatorUnavailableError, UnknownOutcomeError, NotHereError) as error:
            reason = str(error)
        tries += 1
        await asyncio.sleep(max(0.0, min(wait_s, deadline_s - loop.time())))
        wait_s = min(2 * wait_s, WAIT_MOST_S)
    raise UnknownOutcomeError(
        f"nobody told of agent {question.agent!r} in time ({reason}); asking changes nothing: ask again"
    )


async def ask_every_host(
    coordinator: CoordinatorClient, hosts: HostCalls, question: Callable[[str], Question], kind: type[Told]
) -> dict[str, Told | None]:
    """Return the answer of each host that is alive; None: none in time, or its release cannot answer. Nothing if the hosts are unknown."""
    try:
        status = await coordinator.status(ASK_S_MAX)
    except SnaplineError:
        return {}

    async def ask(host: HostStatus) -> Told | None:
        try:
            told = await hosts.show(host.host, host.address, encode_question(question(host.host)), ASK_S_MAX)
            return msgspec.json.decode(told, type=kind)
        except (OfferFailed, NotHereError, SnaplineError, msgspec.MsgspecError):
            return None

    alive = [host for host in status.hosts if host.state == "alive" and status.phase not in OVER]
    found = await asyncio.gather(*[ask(host) for host in alive])
    return {host.host: told for host, told in zip(alive, found, strict=True)}


async def waiting_agents(coordinator: CoordinatorClient, hosts: HostCalls) -> WaitingAgents:
    """Return the agents of the fleet with waiting work, as its hosts see it now."""
    told = await ask_every_host(coordinator, hosts, lambda _: Question("", WAITING), WaitingAgents)
    some = [each for each in told.values() if each is not None]
    silent = tuple([host for host, each in told.items() if each is None])
    return WaitingAgents(
        tuple([agent for each in some for agent in each.agents]), sum([each.more for each in some]), silent
    )


async def recent_traces(
    coordinator: CoordinatorClient, hosts: HostCalls, after: Mapping[str, str], *, every: int, most: int
) -> dict[str, RecentTrace | None]:
    """Return what has happened on each host since the cursor in `after`; `most`: lines of one host."""

    def question(host: str) -> Question:
        return trace_question(TraceWanted(after.get(host, ""), every, most))

    return await ask_every_host(coordinator, hosts, question, RecentTrace)


async def _place(coordinator: CoordinatorClient, question: Question, limit_s: float, tries: int) -> Place:
    reply = await coordinator.locate([question.agent], limit_s)
    owner = owner_of(reply, question)
    return owner if owner is not None else any_of(await coordinator.status(limit_s), tries)


def owner_of(reply: LocateReply, question: Question) -> Place | None:
    """The host to ask; None: any.

    Raises:
        NotHereError: none can say just now. AgentMissingError, FleetEndedError: none will.
    """
    (found,) = reply.agents
    agent = question.agent
    if reply.phase in OVER:
        why = f": {reply.reason}" if reply.reason else ""
        raise FleetEndedError(f"{OVER[reply.phase]}{why}; its store is read with `--store`, or snapline.open_store")
    if found.state == "alive":
        return found.host, found.address
    if found.state == "unknown" and reply.phase != "forming":
        raise AgentMissingError(
            f"agent {agent!r} is not in this fleet: `snapline agent list` names those that are there"
        )
    if question.what == STATE:
        return None
    if found.state == "left":
        raise AgentMissingError(f"agent {agent!r} has stopped: `snapline agent list` names those that are there")
    raise NotHereError(f"the fleet is {reply.phase}, and agent {agent} has no host just now")


def any_of(status: FleetStatus, tries: int) -> Place:
    """A host that is alive; another one each time.

    Raises:
        NotHereError: none is.
    """
    alive = [host for host in status.hosts if host.state == "alive"]
    if not alive:
        raise NotHereError(f"the fleet is {status.phase}, and none of its hosts is alive just now")
    chosen = alive[tries % len(alive)]
    return chosen.host, chosen.address
