"""The support team, whose scripted models note each of their calls in a file."""

import functools
from pathlib import Path

import pydantic_ai
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import snapline
from snapline.adapters.pydantic_ai import SnaplineDurability
from snapline.examples import support_team

_inner = support_team._lead_script


def fleet(service: str, calls: str, complaints: str, auditor: str = "auditor") -> snapline.Fleet:
    """The fleet; `auditor` is what the auditor's prompt calls it."""
    note = functools.partial(_note, Path(calls))

    def _lead_script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        note(f"lead {len(messages)}")
        return _inner(messages, info)

    @functools.cache
    def colleague_agent(name: str, model: str) -> pydantic_ai.Agent[None, str]:
        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            note(name)
            is_changed = name == "auditor" and auditor != "auditor"
            return ModelResponse([TextPart("Rule 4 applies." if is_changed else support_team.OPINIONS[name])])

        instructions = f"You are the {auditor if name == 'auditor' else name}."
        return pydantic_ai.Agent(
            FunctionModel(answer), name=name, capabilities=[SnaplineDurability()], instructions=instructions
        )

    support_team._lead_script = _lead_script
    support_team.colleague_agent = colleague_agent
    return support_team.fleet(service, complaints=complaints)


def _note(calls: Path, text: str) -> None:
    with calls.open("a") as file:
        file.write(f"{text}\n")
