"""Questions of a client about one agent: selection of a host that can answer, and retries until one has.

Only the agent's owner knows its live state and its description. Any host can read a saved state, but the owner is asked first, since its
cache is warm; other hosts are asked while the owner is lost. Questions change nothing, so failed ones are repeated until the time limit.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from snapline.client.hosts import HostCalls, OfferError
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
from snapline.messages.client_wire import encode_question, trace_question
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus, HostStatus
from snapline.messages.views import STATE, WAITING, NotHereError, Question, RecentTrace, TraceWanted, WaitingAgents

Told = TypeVar("Told")

FIND_S_MAX = 2.0
"""Longest wait for the coordinator, which answers from memory: an election takes a second or two, and then it is asked again."""

WAIT_LEAST_S, WAIT_MOST_S = 0.05, 1.0
"""Shortest and longest wait before a host is asked again; doubled each time."""

ASK_S_MAX = 2.0
"""Longest wait for a host that is asked about all its agents: it answers from memory, and the result is returned without a slow host."""


async def ask_until_answered(
    coordinator: Callable[[], CoordinatorClient], hosts: HostCalls, question: Question, limit_s: float
) -> bytes:
    """Repeat a question until a host has answered; return the document.

    Raises:
        UnknownOutcomeError: no host has answered in time.
        AgentMissingError, FleetEndedError: no host can answer.
        UsageError: this client has no permission, or the question has no answer. Other errors of the host are passed on.
    """
    loop, wait_s, tries = asyncio.get_running_loop(), WAIT_LEAST_S, 0
    deadline_s, reason = loop.time() + limit_s, "nobody has answered yet"
    while (left_s := deadline_s - loop.time()) > 0:
        try:
            place = await _place(coordinator(), question, min(FIND_S_MAX, left_s), tries)
            return await hosts.show(*place, encode_question(question), max(deadline_s - loop.time(), 0.001))
        except OfferError as failed:
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
    """Return the answer of each live host; None: no answer in time, or from an older release. Empty if the hosts are unknown."""
    try:
        status = await coordinator.status(ASK_S_MAX)
    except SnaplineError:
        return {}

    async def ask(host: HostStatus) -> Told | None:
        try:
            reply = await hosts.show(host.host, host.address, encode_question(question(host.host)), ASK_S_MAX)
            return msgspec.json.decode(reply, type=kind)
        except (OfferError, NotHereError, SnaplineError, msgspec.MsgspecError):
            return None

    alive = [host for host in status.hosts if host.state == "alive" and status.phase not in OVER]
    replies = await asyncio.gather(*[ask(host) for host in alive])
    return {host.host: told for host, told in zip(alive, replies, strict=True)}


async def waiting_agents(coordinator: CoordinatorClient, hosts: HostCalls) -> WaitingAgents:
    """Return the agents of the fleet with pending work, as its hosts see it now."""
    replies = await ask_every_host(coordinator, hosts, lambda _: Question("", WAITING), WaitingAgents)
    received = [each for each in replies.values() if each is not None]
    silent = tuple([host for host, each in replies.items() if each is None])
    return WaitingAgents(
        tuple([agent for each in received for agent in each.agents]), sum([each.more for each in received]), silent
    )


async def recent_traces(
    coordinator: CoordinatorClient, hosts: HostCalls, after: Mapping[str, str], *, every: int, most: int
) -> dict[str, RecentTrace | None]:
    """Return the events on each host after its cursor in `after`; `most`: largest number of lines of one host."""

    def question(host: str) -> Question:
        return trace_question(TraceWanted(after.get(host, ""), every, most))

    return await ask_every_host(coordinator, hosts, question, RecentTrace)


async def _place(coordinator: CoordinatorClient, question: Question, limit_s: float, tries: int) -> Place:
    reply = await coordinator.locate([question.agent], limit_s)
    owner = owner_of(reply, question)
    return owner if owner is not None else any_live_host(await coordinator.status(limit_s), tries)


def owner_of(reply: LocateReply, question: Question) -> Place | None:
    """Return the host to ask; None: any.

    Raises:
        NotHereError: no host can answer now. AgentMissingError, FleetEndedError: no host will.
    """
    (location,) = reply.agents
    agent = question.agent
    if reply.phase in OVER:
        reason_text = f": {reply.reason}" if reply.reason else ""
        raise FleetEndedError(
            f"{OVER[reply.phase]}{reason_text}; its store is read with `--store`, or snapline.open_store"
        )
    if location.state == "alive":
        return location.host, location.address
    if location.state == "unknown" and reply.phase != "forming":
        raise AgentMissingError(
            f"agent {agent!r} is not in this fleet: `snapline agent list` names those that are there"
        )
    if question.what == STATE:
        return None
    if location.state == "left":
        raise AgentMissingError(f"agent {agent!r} has stopped: `snapline agent list` names those that are there")
    raise NotHereError(f"the fleet is {reply.phase}, and agent {agent} has no host just now")


def any_live_host(status: FleetStatus, tries: int) -> Place:
    """Return a live host, a different one for each try.

    Raises:
        NotHereError: no host is alive.
    """
    alive = [host for host in status.hosts if host.state == "alive"]
    if not alive:
        raise NotHereError(f"the fleet is {status.phase}, and none of its hosts is alive just now")
    chosen = alive[tries % len(alive)]
    return chosen.host, chosen.address
