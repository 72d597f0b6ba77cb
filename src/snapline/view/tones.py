"""Tone of each state on pages and in terminals. The name of the state is always shown too.

Red ("bad") is for failures, lost hosts, and states that need an operator now. Amber ("warn") is temporary or can wait. The rest is green or plain.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from snapline.messages.concerns import URGENT
from snapline.view.markup import Markup, tag

Tone = Literal["good", "plain", "warn", "bad"]
Subject = Literal["fleet", "host", "agent", "epoch", "effect", "replica", "verdict", "concern"]

TONES: tuple[Tone, ...] = ("good", "plain", "warn", "bad")
"""All tones, the worst last."""

_OF: Mapping[Subject, Mapping[str, Tone]] = {
    "fleet": {"running": "good", "forming": "warn", "recovering": "warn", "failed": "bad"},
    "host": {"alive": "good", "lost": "bad"},
    "agent": {
        **dict.fromkeys(("alive", "running"), "good"),
        **dict.fromkeys(("unplaced", "starting", "unborn", "stopping", "dead letters"), "warn"),
        **dict.fromkeys(("lost", "failed"), "bad"),
    },
    "epoch": {"aborted": "warn", "condemned": "bad"},
    "effect": {"done": "good", "in doubt": "warn", "left": "warn", "needs people": "bad", "failed": "bad"},
    "replica": {"leader": "good", "follower": "good", "learner": "warn", "silent": "warn"},
    "verdict": {"pass": "good", "undecided": "warn", "violation": "bad", "broken": "bad"},
    "concern": dict.fromkeys(URGENT, "bad"),
}


def tone_of(subject: Subject, word: str) -> Tone:
    """Return the tone of a state, or of a kind of concern."""
    return _OF[subject].get(word, "warn" if subject == "concern" else "plain")


def worst(tones: Iterable[Tone]) -> Tone:
    """Return the worst tone; "plain" if there is none."""
    return max(tones, key=TONES.index, default="plain")


def pill(subject: Subject, word: str, *more: str) -> Markup:
    """Draw a state with its tone; `more`: text after it."""
    return tag("span", word or "unknown", *more, class_=f"pill {tone_of(subject, word)}")
