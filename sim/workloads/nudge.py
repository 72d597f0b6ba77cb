"""Inputs that simulated clients give to agents of patterns: each causes a turn, and none changes the state."""

import snapline

RAISES = 0.75
"""Probability that a raising handler raises. Three failed tries are mostly a dead letter, and three more mostly do not fail permanently."""


class Nudge(snapline.Message, frozen=True):
    """The `serial`-th input of a client. `raises`: its handler mostly does, so it becomes a dead letter, which may be handled some other time.
    `speaks`: it emits, by `ctx.emit` itself."""

    client: str
    serial: int
    raises: bool
    speaks: bool = False

    def take(self, ctx: snapline.Context) -> None:
        """Handle the input. Each answer differs, so that an undone answer is distinguished from a valid one.

        Raises:
            ValueError: the input is one that raises.
        """
        if self.raises and ctx.random() < RAISES:
            raise ValueError(f"input {self.serial} of {self.client} cannot be handled")
        echo = Echo(self.serial, ctx.random())
        ctx.reply(echo)
        if self.speaks:
            ctx.emit("echoes", Echoed(self.client, self.serial, echo.draw))


class Echoed(snapline.Message, frozen=True):
    """The same, said to the outside: no two have the same bytes, of whatever history."""

    client: str
    serial: int
    draw: float


class Echo(snapline.Message, frozen=True):
    """The answer."""

    serial: int
    draw: float
