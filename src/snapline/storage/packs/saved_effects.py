"""Records of external effects in an agent's checkpoint (`agent_runtime/host/effects.py`)."""

import msgspec


class KnownEffect(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An effect of the agent that has ended, kept by key for repeated requests.

    Attributes:
        key: within the agent; one that begins with `@` was made up for its turn, and is forgotten with it.
        generation: how often it was really run, not counting repetitions: from 1, one more after each compensation.
        digest: of its name and arguments, 8 bytes.
        outcome: "done", "failed" or "compensated".
        result: of what is done, encoded.
        arguments: for people.
        ended_ns: wall-clock time since 1970 of its host.
        is_orphan: its turn has failed permanently, and no later one has taken it over: it may be undone.
        name, undo, undo_arguments: as of `MadeEffect`; empty where it cannot be undone.
        letter: of an orphan: the number of the dead letter that its turn became; 0: none is known.
        late_s: of what has failed: how long its last call might be on its way when it ended.
    """

    key: str
    generation: int
    digest: bytes
    outcome: str
    result: bytes
    arguments: str
    ended_ns: int
    is_orphan: bool = False
    name: str = ""
    undo: str = ""
    undo_arguments: list[bytes] = []
    letter: int = 0
    late_s: float = 0.0


class OpenEffect(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The effect that the agent's turn waits for.

    Attributes:
        key, generation, digest, arguments: as of `KnownEffect`.
        number: of the agent's output that is its intent: when that is released, it may be called.
        name, undo, undo_arguments: as of `MadeEffect`.
        undoes, undoes_generation: of a compensation: what it undoes.
        is_marked: before it is called, a mark is written to the host log: without one it was not.
        is_begun: there is such a mark; the log may not keep it as long as the effect is open.
        is_repeated: a call under this key has failed, or was made in a history that the fleet has given up: it may have done it.
        timeout_s: how long a call of it may take.
    """

    key: str
    generation: int
    digest: bytes
    arguments: str
    number: int
    name: str
    undo: str = ""
    undo_arguments: list[bytes] = []
    undoes: str = ""
    undoes_generation: int = 0
    is_marked: bool = False
    is_begun: bool = False
    is_repeated: bool = False
    timeout_s: float = 0.0


class MadeEffect(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """An effect that the agent's current durable turn has made, or tried to: should the turn fail, this is to be undone.

    Attributes:
        undo: `"module:function"`, or "": it cannot be.
        undo_arguments: of that, each encoded.
    """

    key: str
    generation: int
    name: str
    undo: str = ""
    undo_arguments: list[bytes] = []


class SavedEffects(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Effects of an agent: the latest keys, oldest first; those of the present turn, oldest first; and the open one."""

    keys: list[KnownEffect] = []
    made: list[MadeEffect] = []
    open: OpenEffect | None = None
