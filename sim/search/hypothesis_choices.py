"""Integration with Hypothesis, which searches for a failing run and shrinks it towards the benign choices.

    @given(choices=sparse_choices())
    def test_my_fleet(choices):
        result = run_fleet(my_module.fleet, faults="crashes", choices=choices)
        assert result.verdict == "pass", summarise(result)

`HypothesisChoices(data)` draws each choice when the run makes it, from `integers(0, n - 1)`. Hypothesis considers 0 the simplest value, and
0 is the benign choice. However, a run makes hundreds of choices, and Hypothesis prefers fewer draws to smaller values. So a shrunk example
may keep unusual values because they make the run shorter. A shrunk example also lists every choice, including all zeros. Use
`HypothesisChoices` only for runs with tens of choices, or for a single stream.

`sparse_choices()` draws in advance the few choices that are not benign, for example that the seventh choice of the stream "net" is 3.
Removing an entry makes one choice benign, so examples of this kind shrink well, and the printed example can be pasted into a test. The
drawback is that a choice is identified by its position in its stream, not by the situation in the run, so removing an entry may shift later
choices. In one example, an ordering bug with three messages on four hosts was found and shrunk in 192 runs, which took 10 s. When each
choice was drawn individually, finding and shrinking the same bug took 591 runs and 61 s.

Snapline does not depend on Hypothesis. Users of this module must install Hypothesis.
"""

from collections.abc import Mapping

from hypothesis import strategies as st

from snapline.sim.choices import Choices, Key

STREAMS = ("net", "fault", "storage", "schedule", "log")

CHOICES_MAX = 500
"""Maximum number of draws per run. Hypothesis abandons examples that reach 8192 bytes, and rejects tests whose examples
often come near this limit."""

CHANGES_MAX = 20
"""Maximum number of non-benign choices per run. Most bugs need fewer than five."""

PLACES_MAX = 300
"""Number of positions in a stream at which a choice may be non-benign. A run of a small fleet makes a few hundred choices per stream."""

VALUE_MAX = 64
"""Maximum value that is drawn for a choice. If the choice has fewer outcomes, the value wraps around."""


class HypothesisChoices:
    """Choices that Hypothesis draws at the moment when the run needs them.

    Attributes:
        drawn: number of choices drawn by Hypothesis.
    """

    def __init__(
        self,
        data: st.DataObject,
        *,
        choices_max: int = CHOICES_MAX,
        streams: tuple[str, ...] = STREAMS,
        others: Choices | None = None,
    ) -> None:
        """`data` is the value that `hypothesis.strategies.data()` provides.

        Args:
            choices_max: maximum number of draws. Further choices are benign.
            others: source of the choices in all other streams, or None for benign choices.
        """
        self._data = data
        self._choices_max = choices_max
        self._streams = streams
        self._others = others
        self.drawn = 0

    def pick(self, stream: str, key: Key, n: int) -> int:
        if stream not in self._streams:
            return self._others.pick(stream, key, n) if self._others is not None else 0
        if n < 2 or self.drawn >= self._choices_max:
            return 0
        self.drawn += 1
        label = f"{stream} {' '.join(str(part) for part in key)}"
        return self._data.draw(st.integers(0, n - 1), label=label)


class SparseChoices:
    """Choices that are benign except at the given positions. `changes` maps (stream, position in the stream) to the choice at this
    position. An object can be used for only one run."""

    def __init__(self, changes: Mapping[tuple[str, int], int]) -> None:
        self._changes = dict(changes)
        self._places: dict[str, int] = {}

    def pick(self, stream: str, key: Key, n: int) -> int:
        place = self._places.get(stream, 0)
        self._places[stream] = place + 1
        value = self._changes.get((stream, place), 0)
        return 1 + (value - 1) % (n - 1) if value and n > 1 else 0

    def __repr__(self) -> str:
        return f"SparseChoices({self._changes!r})"


def sparse_choices(
    *, streams: tuple[str, ...] = STREAMS, changes_max: int = CHANGES_MAX, places_max: int = PLACES_MAX
) -> st.SearchStrategy[SparseChoices]:
    """Return a strategy for choices of which up to `changes_max` are not benign, all among the first `places_max` choices of each
    stream."""
    places = st.tuples(st.sampled_from(streams), st.integers(0, places_max - 1))
    return st.dictionaries(places, st.integers(1, VALUE_MAX), max_size=changes_max).map(SparseChoices)
