"""CPU costs of work on a simulated host at full speed. Work that is not listed here takes no time."""

import msgspec


class Costs(msgspec.Struct, frozen=True):
    """Costs of work, in virtual nanoseconds.

    Attributes:
        turn_ns: cost of a turn: a plain handler with its share of the overhead.
        batch_ns: cost of one pass over all other pending events.
        capture_ns: fixed cost of capturing one agent's state (measured: 2.5 ms for fifty agents).
        capture_byte_ns: additional capture cost of each byte of the state.
        send_ns: cost of sending a message under a logged protocol: the sender's log entry and the protocol's stamp.
    """

    turn_ns: int = 20_000
    batch_ns: int = 30_000
    capture_ns: int = 50_000
    capture_byte_ns: int = 1
    send_ns: int = 0

    def for_messages(self, times: int) -> "Costs":
        """Return costs for messages that each represent `times` many, including their share of images."""
        return msgspec.structs.replace(
            self,
            turn_ns=times * self.turn_ns,
            send_ns=times * self.send_ns,
            capture_byte_ns=times * self.capture_byte_ns,
        )
