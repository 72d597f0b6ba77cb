"""Records of external effects in an agent's checkpoint (`agent_runtime/host/host_effects.py`)."""

import msgspec


class KnownEffect(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A finished effect of the agent, kept by key to answer repeated requests.

    Attributes:
        key: key, unique within the agent; one that begins with `@` was generated for its turn and is forgotten with it.
        generation: number of real executions, not counting repetitions: starts at 1 and grows after each compensation.
        digest: digest of name and arguments, 8 bytes.
        outcome: "done", "failed" or "compensated".
        result: encoded result of a successful effect.
        arguments: arguments as text, for people.
        ended_ns: wall-clock time of its host in nanoseconds since 1970.
        is_orphan: its turn has failed permanently and no later turn has adopted it: it may be compensated.
        name, undo, undo_arguments: as in `MadeEffect`; empty if it cannot be compensated.
        letter: of an orphan, the number of its turn's dead letter; 0 if unknown.
        late_s: of a failed effect, how long its last call may still have been running when it ended.
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
    """The effect for which the agent's turn waits.

    Attributes:
        key, generation, digest, arguments: as in `KnownEffect`.
        number: number of the agent's output that announces the effect; the effect may run after that output is released.
        name, undo, undo_arguments: as in `MadeEffect`.
        undoes, undoes_generation: of a compensation, the effect that it compensates.
        is_marked: a mark is written to the host log before each call, so without a mark the effect was never called.
        is_begun: such a mark exists; the log may drop it while the effect is still open.
        is_repeated: a call under this key has failed, or was made in a reverted history: it may have taken effect.
        timeout_s: time limit of a call in seconds.
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
    """An effect that the agent's current durable turn has made or tried; it is compensated if the turn fails.

    Attributes:
        undo: compensation as `"module:function"`, or "" if there is none.
        undo_arguments: its arguments, each encoded.
    """

    key: str
    generation: int
    name: str
    undo: str = ""
    undo_arguments: list[bytes] = []


class SavedEffects(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Effects of an agent: the latest finished ones, those of the current turn (both oldest first), and the open one."""

    keys: list[KnownEffect] = []
    made: list[MadeEffect] = []
    open: OpenEffect | None = None
