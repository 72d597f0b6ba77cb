"""Choice of the next coordinator replica to ask: pure, for tools and hosts alike.

A replica that does not lead names the leader by the address that the replicas have for one another. From elsewhere it may be unreachable (a
forwarded port, another network, a name that only they know), while the address that we were given for it is not: so the named one is asked first.
If nobody answers there, the given addresses are asked in turn, and the name is passed over until each has had its turn.
"""

from collections.abc import Callable, Sequence


class ReplicaTurns:
    """Attributes:
    given: all addresses that we were given, in their order; never empty.
    current: whom to ask now.
    """

    def __init__(self, given: Sequence[str], may_ask: Callable[[str], bool]) -> None:
        """`may_ask`: whether an address named by a replica may be used at all; with one given address any is tried, and fails with its reason."""
        self.given = tuple(given)
        self.current = self.given[0]
        self._may_ask = may_ask if len(self.given) > 1 else lambda address: True
        self._place = 0
        """Index in `given` of the last one asked."""
        self._unreached: dict[str, None] = {}
        """Addresses named by replicas at which nobody has answered since the last round began."""

    def leads_elsewhere(self, address: str, leader: str) -> None:
        """A replica has answered that it does not lead; `leader`: whom it names, or empty."""
        self._unreached.pop(address, None)
        self._asked(address)
        if leader and leader not in self._unreached and self._may_ask(leader):
            self.current = leader
        else:
            self._go_on()

    def is_silent(self, address: str) -> None:
        """Note that nobody answered there."""
        if address not in self.given:
            self._unreached[address] = None
        self._asked(address)
        self._go_on()

    def _asked(self, address: str) -> None:
        if address in self.given:
            self._place = self.given.index(address)

    def _go_on(self) -> None:
        self._place = (self._place + 1) % len(self.given)
        if self._place == 0:
            self._unreached.clear()
        self.current = self.given[self._place]
