"""A writer and a critic who ask a model, whose answers differ each time, and publish what comes of it. Each call is noted in a file."""

import functools
import random
from pathlib import Path

import msgspec

import snapline


class Start(snapline.Message):
    pass


class Topic(snapline.Message):
    number: int


class Draft(snapline.Message):
    text: str


class Verdict(snapline.Message):
    text: str


class Notes(msgspec.Struct):
    folder: str
    prompt: str
    topics: int = 0
    texts: list[str] = []


def model(agent: str, folder: str, prompt: str, text: str) -> str:
    _note(folder, "calls", f"{agent}: {prompt}")
    return f"{text}/{random.randrange(10**9)}"


def publish(folder: str, text: str, *, key: str) -> int:
    _note(folder, "published", f"{key} {text}")
    return random.randrange(10**9)


def _note(folder: str, file: str, text: str) -> None:
    with Path(folder, file).open("a") as opened:
        opened.write(f"{text}\n")


class Writer(snapline.Agent):
    state: Notes

    async def on_start(self, ctx: snapline.Context) -> None:
        ctx.set_timer("start", 1.0, Start())

    @snapline.handler
    async def on_timer_start(self, message: Start, ctx: snapline.Context) -> None:
        for number in range(self.state.topics):
            ctx.send("writer", Topic(number % 7))

    @snapline.handler(durable=True)
    async def on_topic(self, message: Topic, ctx: snapline.Context) -> None:
        state, text = self.state, f"topic {message.number}"
        asked = ("writer", state.folder, state.prompt, text)
        first, second = await ctx.gather(ctx.step("write", model, *asked), ctx.step("write", model, *asked))
        verdict = await ctx.call("critic", Draft(first), Verdict)
        receipt = await ctx.effect("publish", publish, state.folder, verdict.text)
        state.texts.append(f"{first} {second} {verdict.text} {receipt}")


class Critic(snapline.Agent):
    state: Notes

    @snapline.handler(durable=True)
    async def on_draft(self, message: Draft, ctx: snapline.Context) -> None:
        text = await ctx.step("judge", model, "critic", self.state.folder, self.state.prompt, message.text)
        self.state.texts.append(text)
        ctx.reply(Verdict(text))


def is_done(topics: int, cut: snapline.Cut) -> bool:
    writer = cut.states["writer"]
    return isinstance(writer, Notes) and len(writer.texts) == topics


def fleet(folder: str, topics: str = "66", recovery: str = "global") -> snapline.Fleet:
    """The fleet. It starts writing after a second, so that a snapshot can be taken before."""
    return snapline.Fleet(
        "writers",
        agents={
            "writer": Writer(Notes(folder, "Write about", int(topics))),
            "critic": Critic(Notes(folder, "What of")),
        },
        triggers=[snapline.Every(seconds=0.3)],
        stop_when=functools.partial(is_done, int(topics)),
        recovery=recovery,
        keep_answers=True,
    )
