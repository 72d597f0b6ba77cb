"""Choices from Hypothesis: it looks for a run that fails, and shrinks it towards the benign choices.

    @given(choices=sparse_choices())
    def test_my_fleet(choices):
        result = run_fleet(my_module.fleet, faults="crashes", choices=choices)
        assert result.verdict == "pass", summarise(result)

`HypothesisChoices(data)` draws each choice when it is made, from `integers(0, n - 1)`: 0, the benign choice, is the simplest. A
run makes hundreds of choices, and to Hypothesis fewer draws are simpler than smaller ones: so a shrunk example may keep odd
values that make a run shorter, and it is printed with all its zeros. This is for runs of some tens of choices, or one stream.

`sparse_choices()` draws beforehand which few choices are not benign: the seventh of stream "net" is 3. Removing one entry makes
one choice benign, which is what shrinking should try, and what is printed can be pasted into a test. The price: a choice is
named by its place in its stream and not by its situation, so an entry that is removed may move what comes after it. For the
order of three messages on four hosts it took 192 runs and 10 s to find and shrink, single draws took 591 and 61 s.

Hypothesis is not needed by snapline; who imports this module has it.
"""

from collections.abc import Mapping

from hypothesis import strategies as st

from snapline.sim.choices import Choices, Key

STREAMS = ("net", "fault", "storage", "schedule", "log")

CHOICES_MAX = 500
"""Draws for one run: Hypothesis gives up on examples of 8192 bytes, and refuses tests that mostly come near it."""

CHANGES_MAX = 20
"""Choices of a run that are not benign: most bugs need fewer than five."""

PLACES_MAX = 300
"""Latest position in a stream at which a choice may change: a run of a small fleet makes some hundred in each."""

VALUE_MAX = 64
"""A choice has up to 64 outcomes that matter; those with more take the remainder."""


class HypothesisChoices:
    """Draws each choice when it is made.

    Attributes:
        drawn: how many choices Hypothesis made.
    """

    def __init__(
        self,
        data: st.DataObject,
        *,
        choices_max: int = CHOICES_MAX,
        streams: tuple[str, ...] = STREAMS,
        others: Choices | None = None,
    ) -> None:
        """`data` is of `hypothesis.strategies.data()`.

        Args:
            choices_max: draws; further choices are benign.
            streams: those that Hypothesis draws.
            others: who makes the choices of the other streams; None makes them benign.
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
    """All choices are benign but these: (stream, place in the stream) → value. For one run, since it counts."""

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
    """A strategy: up to `changes_max` choices of these streams, among the first `places_max` of each, are not benign."""
    places = st.tuples(st.sampled_from(streams), st.integers(0, places_max - 1))
    return st.dictionaries(places, st.integers(1, VALUE_MAX), max_size=changes_max).map(SparseChoices)
