"""Judges a program's store by the notes of its lives. No I/O.

A *story* is a sequence of lives of one program on one store. All lives but the last two were killed at some write; the last two ended by
themselves. A life writes notes (`chaos/crash_child.py`): what it found in the store, what it begins, and what the store has confirmed as durable
("kept"). A store is correct if

* no life fails or hangs: a crash must not leave a store that cannot be opened (*broken*);
* every later life that looks finds all kept items (*lost*), and finds no item that was never begun (*invented*);
* no later life begins a kept item again (*repeated*): a durable step is not done twice, an input is consumed once;
* the program returns the same result as without a kill (*different*), and running it once more changes nothing (*unsettled*).
"""

import msgspec


class Life(msgspec.Struct, frozen=True):
    """Notes of one life.

    Attributes:
        killed_at: number of the file change just before which it was killed; 0: it was not killed.
        ended: "killed", "done", "failed" or "hangs".
        result: the program's result as JSON, or its error.
        found: items found in the store; None if the program did not report any.
        words: ("began" or "kept", item) in order.
    """

    killed_at: int
    ended: str
    result: str = ""
    found: tuple[str, ...] | None = None
    words: tuple[tuple[str, str], ...] = ()


class CrashFinding(msgspec.Struct, frozen=True):
    """A fault of the store.

    Attributes:
        kind: "broken", "lost", "invented", "repeated", "different" or "unsettled".
        at: change at which the story's first life was killed.
        sentence: description of the fault.
    """

    kind: str
    at: int
    sentence: str


def judge(lives: list[Life], undisturbed: str) -> list[CrashFinding]:
    """Return the findings of a story. `undisturbed`: the program's result if it is not killed."""
    at = lives[0].killed_at
    broken = [
        CrashFinding("broken", at, f"life {number} {'hangs' if life.ended == 'hangs' else f'fails: {life.result}'}")
        for number, life in enumerate(lives, 1)
        if life.ended in ("failed", "hangs")
    ]
    findings = broken or [*_note_findings(lives, at), *_end_findings(lives, at, undisturbed)]
    return list({(each.kind, each.sentence): each for each in findings}.values())


def _note_findings(lives: list[Life], at: int) -> list[CrashFinding]:
    findings = []
    begun: dict[str, None] = {}
    kept: dict[str, int] = {}
    for number, life in enumerate(lives, 1):
        kept_before = dict(kept)
        visible = kept_before if life.found is None else dict.fromkeys(life.found)
        for item in [x for x in kept_before if x not in visible]:
            findings.append(
                CrashFinding(
                    "lost", at, f"{item} was kept in life {kept_before[item]}, and life {number} does not find it"
                )
            )
        for item in [x for x in visible if x not in begun and x not in kept_before]:
            findings.append(CrashFinding("invented", at, f"life {number} finds {item}, which was never begun"))
        for word, item in life.words:
            if word == "began" and item in kept_before:
                findings.append(
                    CrashFinding(
                        "repeated", at, f"{item} was kept in life {kept_before[item]}, and life {number} does it again"
                    )
                )
            if word == "began":
                begun[item] = None
            else:
                kept.setdefault(item, number)
    return findings


def _end_findings(lives: list[Life], at: int, undisturbed: str) -> list[CrashFinding]:
    last, again = lives[-2:]
    if last.result != undisturbed:
        return [
            CrashFinding("different", at, f"it ends with {_clip(last.result)}, undisturbed with {_clip(undisturbed)}")
        ]
    if again.result != last.result:
        return [
            CrashFinding(
                "unsettled", at, f"once more after its end it gives {_clip(again.result)}, not {_clip(last.result)}"
            )
        ]
    return []


def _clip(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"
