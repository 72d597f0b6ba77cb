"""Agents that hold and say what would harm a page that took it for its own; until a file tells them to stop."""

import os

import msgspec

import snapline

MARKUP = '"><img src=x onerror="window.harmed=1"><script>window.harmed=1</script></script></style><svg onload=window.harmed=1>'
BIDI = "pay \u202eevil\u202c\u2066\u200b\ufeff to nobody"
CONTROLS = "".join(map(chr, (*range(32), *range(127, 160)))) + "\x1b[2J\x1b]0;owned\x07\x00 NUL \x00"
MEGABYTE = 1_000_000


class Curse(snapline.Message):
    """To itself by a timer, and to the outside."""

    words: str
    table: dict[str, str]


class Grudge(msgspec.Struct):
    stop: str
    words: list[str]
    table: dict[str, str]
    text: str
    said: int = 0


class Spiteful(snapline.Agent):
    state: Grudge
    on_error = "keep"  # its state is too large for an image before each turn

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer(MARKUP, 3600.0, curse())
        ctx.set_timer("say", 0.1, curse())

    @snapline.handler
    async def on_curse(self, message: Curse, ctx: snapline.Context) -> None:
        self.state.said += 1
        if os.path.exists(self.state.stop):
            return
        ctx.emit("curses<b>", message)
        ctx.set_timer("say", 0.5, curse())


def curse() -> Curse:
    return Curse(MARKUP + BIDI + CONTROLS, {MARKUP: CONTROLS, BIDI: MARKUP})


def fleet(stop: str, text_mb: str = "0", agents: str = "5") -> snapline.Fleet:
    """`text_mb`: of one text in each state, beside what is hostile. Ids are as long as they may be. Snapshots are taken by hand."""
    made = {}
    for number in range(int(agents)):
        text = (chr(0x61 + number % 26) + "<b>") * round(float(text_mb) * MEGABYTE / 4)
        words = [MARKUP, BIDI, CONTROLS, "w" * 100_000]
        made[f"agent-{number}-".ljust(128, "n")] = Spiteful(Grudge(stop, words, {MARKUP: BIDI, CONTROLS: MARKUP}, text))
    return snapline.Fleet("spiteful", agents=made)
