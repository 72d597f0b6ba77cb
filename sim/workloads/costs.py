"""CPU costs of work on a simulated host, at full speed. Only the work listed here takes a host any time."""

import msgspec


class Costs(msgspec.Struct, frozen=True):
    """Costs of work, in virtual nanoseconds.

    Attributes:
        turn_ns: a turn: a plain handler with its share of the overhead.
        batch_ns: a look at everything else.
        capture_ns: taking one agent's image: some 2.5 ms for fifty agents, measured. capture_byte_ns: the same for each of its bytes.
        send_ns: a message that leaves under a logged protocol: its place in the sender's log, and what it carries for the protocol.
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
