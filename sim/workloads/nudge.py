"""What simulated clients say to agents of patterns: nothing that changes their state, but a turn, and each time another one."""

import snapline

RAISES = 0.75
"""How often a handler does that raises. Three tries in a row are mostly a dead letter, and three more of them mostly not for good."""


class Nudge(snapline.Message, frozen=True):
    """The `serial`-th input of a client. `raises`: its handler mostly does, so it becomes a dead letter, which may be handled some other time.
    `speaks`: it emits, by `ctx.emit` itself."""

    client: str
    serial: int
    raises: bool
    speaks: bool = False

    def take(self, ctx: snapline.Context) -> None:
        """What a handler does with it: each time another answer, so that one that was undone is told from one that stands.

        Raises:
            ValueError: it is one that raises.
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
