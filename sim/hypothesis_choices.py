"""Choices from Hypothesis: it looks for a run that fails, and shrinks it towards the benign choices.

    @given(data=st.data())
    def test_my_fleet(data):
        result = run_fleet(my_module.fleet, faults="crashes", choices=HypothesisChoices(data))
        assert result.verdict == "pass", summarise(result)

Every choice is a draw from `integers(0, n - 1)`, which Hypothesis shrinks towards 0, the benign one. A run makes thousands of
choices and Hypothesis gives up on examples with as many: so those beyond `choices_max` are 0, and whole streams may be left to
a seed. Compared with a seed, or with `snapline sim shrink`, this is slow: take it where a test draws other things as well.

Hypothesis is not needed by snapline; who imports this module has it.
"""

from hypothesis import strategies as st

from snapline.sim.choices import Choices, Key

CHOICES_MAX = 500
"""Draws for one run: a tenth of what Hypothesis takes (8192 bytes), since it refuses tests that mostly come near it."""


class HypothesisChoices:
    """A source of choices.

    Attributes:
        drawn: how many choices Hypothesis made.
    """

    def __init__(
        self,
        data: st.DataObject,
        *,
        choices_max: int = CHOICES_MAX,
        streams: tuple[str, ...] = (),
        others: Choices | None = None,
    ) -> None:
        """Streams are "net", "fault", "storage", "schedule" and "log"; without any named, all are drawn.

        Args:
            data: of `hypothesis.strategies.data()`.
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
        if self._streams and stream not in self._streams:
            return self._others.pick(stream, key, n) if self._others is not None else 0
        if n < 2 or self.drawn >= self._choices_max:
            return 0
        self.drawn += 1
        label = f"{stream} {' '.join(str(part) for part in key)}"
        return self._data.draw(st.integers(0, n - 1), label=label)
