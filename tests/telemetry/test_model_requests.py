"""Tokens by agent and model, and what asks for the conventions of generative AI."""

import pytest

from snapline.telemetry.model_requests import (
    CHAT,
    MODEL_TOKENS,
    OPT_IN,
    PAIRS_MAX,
    Response,
    SdkRequest,
    TokenCounts,
    names_gen_ai,
)


def test_tokens_are_summed_by_agent_and_model() -> None:
    counts = TokenCounts()
    assert counts.read() == {}, "no metric of fleets without such agents"
    for agent, tokens in [("a", 5), ("b", 7), ("a", 1)]:
        counts.add(SdkRequest(CHAT, "m", agent, {}), Response(tokens, 2))
    assert counts.read() == {
        MODEL_TOKENS.name: {
            ("a", "m", "input"): 6.0,
            ("a", "m", "output"): 4.0,
            ("b", "m", "input"): 7.0,
            ("b", "m", "output"): 2.0,
        }
    }


def test_names_that_code_makes_up_are_bounded_and_no_token_is_lost() -> None:
    counts = TokenCounts()
    for number in range(PAIRS_MAX + 50):
        counts.add(SdkRequest(CHAT, "m", f"agent-{number}", {}), Response(1, 0))
    found = counts.read()[MODEL_TOKENS.name]
    assert isinstance(found, dict) and len(found) == 2 * (PAIRS_MAX + 1)
    assert sum(found.values()) == PAIRS_MAX + 50 and found["other", "other", "input"] == 50


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", False),
        ("http", False),
        ("gen_ai_latest_experimental", True),
        ("http/dup, gen_ai_latest_experimental", True),
    ],
)
def test_the_variable_of_opentelemetry_asks_for_the_conventions(
    monkeypatch: pytest.MonkeyPatch, value: str, *, expected: bool
) -> None:
    monkeypatch.setenv(OPT_IN, value)
    assert names_gen_ai() is expected
