"""Choice of the next coordinator replica to ask: pure, for tools and hosts alike.

A replica that does not lead names the leader by its internal address. That address may be unreachable from elsewhere (a forwarded port,
another network, an internal name), while the configured address of the leader is reachable. So the named address is asked first. If it does
not answer, the configured addresses are asked in turn, and the named address is skipped until each of them was asked.
"""

from collections.abc import Callable, Sequence


class ReplicaChoice:
    """Attributes:
    given: all configured addresses, in their order; never empty.
    current: address to ask now.
    """

    def __init__(self, given: Sequence[str], may_use_address: Callable[[str], bool]) -> None:
        """`may_use_address`: whether an address named by a replica may be used. With a single configured address, any named address is tried."""
        self.given = tuple(given)
        self.current = self.given[0]
        self._may_use_address = may_use_address if len(self.given) > 1 else lambda address: True
        self._place = 0
        """Index in `given` of the last address asked."""
        self._unreached: dict[str, None] = {}
        """Addresses named by replicas that have not answered since the last round began."""

    def on_not_leader(self, address: str, leader: str) -> None:
        """Note that the replica at `address` does not lead; `leader`: the address that it names, or empty."""
        self._unreached.pop(address, None)
        self._asked(address)
        if leader and leader not in self._unreached and self._may_use_address(leader):
            self.current = leader
        else:
            self._go_on()

    def is_silent(self, address: str) -> None:
        """Note that the replica at `address` did not answer."""
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
