"""What simulated clients say to agents of patterns: nothing that changes their state, but a turn, and each time another one."""

import snapline


class Nudge(snapline.Message, frozen=True):
    """The `serial`-th input of a client. `raises`: its handler does, so it becomes a dead letter."""

    client: str
    serial: int
    raises: bool

    def take(self, ctx: snapline.Context) -> None:
        """What a handler does with it: each time another answer, so that one that was undone is told from one that stands.

        Raises:
            ValueError: it is one that raises.
        """
        if self.raises:
            raise ValueError(f"input {self.serial} of {self.client} cannot be handled")
        ctx.reply(Echo(self.serial, ctx.random()))


class Echo(snapline.Message, frozen=True):
    """The answer."""

    serial: int
    draw: float
