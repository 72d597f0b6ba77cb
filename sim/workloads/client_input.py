"""Inputs that simulated clients send to agents of patterns. Each input causes a turn and changes no state."""

import snapline

RAISES = 0.75
"""Probability that a raising handler raises. Three attempts usually end in a dead letter; retrying it usually succeeds."""


class Nudge(snapline.Message, frozen=True):
    """The `serial`-th input of a client.

    Attributes:
        raises: the handler raises most of the time, so the input becomes a dead letter that may succeed when it is retried.
        speaks: the handler also emits an output with `ctx.emit`.
    """

    client: str
    serial: int
    raises: bool
    speaks: bool = False

    def take(self, ctx: snapline.Context) -> None:
        """Handle the input. Every answer is unique, which distinguishes a reverted answer from a valid one.

        Raises:
            ValueError: `raises` is set and the draw was unlucky.
        """
        if self.raises and ctx.random() < RAISES:
            raise ValueError(f"input {self.serial} of {self.client} cannot be handled")
        echo = Echo(self.serial, ctx.random())
        ctx.reply(echo)
        if self.speaks:
            ctx.emit("echoes", Echoed(self.client, self.serial, echo.draw))


class Echoed(snapline.Message, frozen=True):
    """Output for a nudge. No two outputs have the same bytes, not even in different histories."""

    client: str
    serial: int
    draw: float


class Echo(snapline.Message, frozen=True):
    """Answer to a nudge."""

    serial: int
    draw: float
