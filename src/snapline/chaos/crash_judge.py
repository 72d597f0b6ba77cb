"""Judges a program's store by the notes of its lives. No I/O.

One *story* is the lives of one program on one store: each but the last two was killed at some write, the last two ended by themselves. A life
writes notes (`chaos/crash_child.py`): what it found in the store, what it is about to do, what the store has promised to keep. A store is right if

* no life fails or hangs: a crash must not leave what cannot be opened (*broken*);
* what was kept is found by every later life that looks (*lost*), and nothing is found that was never begun (*invented*);
* what was kept is not begun again by a later life (*repeated*): a step that is durable is not done twice, an input is consumed once;
* the program ends as it does undisturbed (*different*), and one more life after the end changes nothing (*unsettled*).
"""

import msgspec


class Life(msgspec.Struct, frozen=True):
    """Notes of one life.

    Attributes:
        killed_at: the number of the change to a file just before which it was killed; 0: it was left alone.
        ended: "killed", "done", "failed" or "hangs".
        result: what the program returned, as JSON; of one that failed, its error.
        found: in the store; None: it did not get that far, or does not look.
        words: ("began" | "kept", of what), in order.
    """

    killed_at: int
    ended: str
    result: str = ""
    found: tuple[str, ...] | None = None
    words: tuple[tuple[str, str], ...] = ()


class CrashFinding(msgspec.Struct, frozen=True):
    """Something that must not be.

    Attributes:
        kind: "broken", "lost", "invented", "repeated", "different" or "unsettled".
        at: where the story's first life was killed.
        sentence: what happened.
    """

    kind: str
    at: int
    sentence: str


def judge(lives: list[Life], undisturbed: str) -> list[CrashFinding]:
    """Return the findings of a story. `undisturbed`: what the program returns if it is not killed."""
    at = lives[0].killed_at
    broken = [
        CrashFinding("broken", at, f"life {number} {'hangs' if life.ended == 'hangs' else f'fails: {life.result}'}")
        for number, life in enumerate(lives, 1)
        if life.ended in ("failed", "hangs")
    ]
    found = broken or [*_of_words(lives, at), *_of_ends(lives, at, undisturbed)]
    return list({(each.kind, each.sentence): each for each in found}.values())


def _of_words(lives: list[Life], at: int) -> list[CrashFinding]:
    findings = []
    begun: dict[str, None] = {}
    kept: dict[str, int] = {}
    for number, life in enumerate(lives, 1):
        known = dict(kept)
        seen = known if life.found is None else dict.fromkeys(life.found)
        for of in [x for x in known if x not in seen]:
            findings.append(
                CrashFinding("lost", at, f"{of} was kept in life {known[of]}, and life {number} does not find it")
            )
        for of in [x for x in seen if x not in begun and x not in known]:
            findings.append(CrashFinding("invented", at, f"life {number} finds {of}, which was never begun"))
        for word, of in life.words:
            if word == "began" and of in known:
                findings.append(
                    CrashFinding("repeated", at, f"{of} was kept in life {known[of]}, and life {number} does it again")
                )
            if word == "began":
                begun[of] = None
            else:
                kept.setdefault(of, number)
    return findings


def _of_ends(lives: list[Life], at: int, undisturbed: str) -> list[CrashFinding]:
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
