"""A client's requests: each is carried out and always returns one event for the core."""

from snapline.client import events as ev
from snapline.client.hosts import HostCalls, OfferError
from snapline.errors import UsageError
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.inputs import GivenInput


async def find(coordinator: CoordinatorClient, command: ev.LookUpAgents) -> ev.Event:
    """Ask the coordinator for the places of agents."""
    try:
        return ev.AgentsFound(command.request, await coordinator.locate(command.agents, command.limit_ns / 1e9))
    except Exception as error:  # every request must return an event, or its agents would wait forever
        return ev.LookupFailed(command.request, str(error), is_final=isinstance(error, UsageError))


async def offer(hosts: HostCalls, command: ev.OfferInputs, inputs: list[GivenInput]) -> ev.Event:
    """Offer inputs to a host."""
    try:
        outcomes = await hosts.offer(command.host, command.address, inputs, command.limit_ns / 1e9)
        return ev.RequestAnswered(command.request, outcomes)
    except Exception as error:
        return _failed(command.request, error)


async def ask(hosts: HostCalls, command: ev.AskHost, question: bytes) -> ev.Event:
    """Wait for an answer from a host."""
    try:
        outcome = await hosts.ask(command.host, command.address, question, command.limit_ns / 1e9)
        return ev.AnswerHeard(command.request, outcome)
    except Exception as error:
        return _failed(command.request, error)


def _failed(request: int, error: Exception) -> ev.RequestFailed:
    if isinstance(error, OfferError):
        return ev.RequestFailed(request, error.reason, error.is_unsent, error.is_final)
    return ev.RequestFailed(request, f"{type(error).__name__}: {error}")
