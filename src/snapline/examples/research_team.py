"""A research team: a planner explores a dictionary, searchers look up its terms, a writer summarizes.

The planner's plan is one durable turn of at least twenty steps. For each term it calls a searcher, has a language model summarize the result in one
sentence, and adds the references in the article to its terms. A crash in the middle loses no answer received so far.

    snapline run snapline.examples.research_team:fleet --hosts 2 --arg topics=checkpoint
    snapline run snapline.examples.research_team:fleet --arg dictionary=foldoc --arg model=smollm2 --arg topics='checkpoint,deadlock'
"""

from pathlib import Path

import msgspec

import snapline
from snapline.examples.dictionary import FOLDOC, Article, look_up
from snapline.examples.language_model import ask

SEARCHERS = 2

DRAFT_NOTES = 5
"""Number of notes that the writer reads; a small model cannot use more."""


class Question(snapline.Message):
    """Topic to read about."""

    topic: str


class Look(snapline.Message):
    term: str


class Draft(snapline.Message):
    topic: str
    notes: list[str]


class Written(snapline.Message):
    text: str


class Report(snapline.Message):
    """`read`: terms that were looked up, in order."""

    topic: str
    text: str
    read: list[str]


class Plans(msgspec.Struct):
    """`pause_s`: pause between two steps of the plan; without it the small example would be over at once."""

    topics: list[str]
    steps: int
    model: str
    calls: str
    pause_s: float
    reports: dict[str, Report] = {}


class Shelf(msgspec.Struct):
    dictionary: str
    looked_up: int = 0


class Desk(msgspec.Struct):
    model: str
    calls: str
    written: int = 0


class Planner(snapline.Agent):
    """Researches its own topics, one after the other, and topics that clients ask for."""

    state: Plans

    async def on_start(self, ctx: snapline.Context) -> None:
        for topic in self.state.topics:
            ctx.send(ctx.agent, Question(topic))

    @snapline.handler(durable=True)
    async def on_question(self, message: Question, ctx: snapline.Context) -> None:
        state, terms, notes = self.state, [message.topic], list[str]()
        for number in range(state.steps):
            if number == len(terms):
                break
            article = await ctx.call(f"searcher-{number % SEARCHERS}", Look(terms[number]), Article)
            terms += [link for link in article.links if link not in terms]
            notes.append(await ctx.step("note", ask, state.model, note_on(message.topic, article), state.calls))
            await ctx.sleep(state.pause_s)
        written = await ctx.call("writer", Draft(message.topic, notes), Written)
        report = Report(message.topic, written.text, terms[: len(notes)])
        state.reports[message.topic] = report
        if ctx.sender != ctx.agent:
            ctx.reply(report)


class Searcher(snapline.Agent):
    """Looks up articles in the dictionary."""

    state: Shelf

    @snapline.handler
    async def on_look(self, message: Look, ctx: snapline.Context) -> None:
        self.state.looked_up += 1
        ctx.reply(await ctx.step("look up", look_up, self.state.dictionary, message.term))


class Writer(snapline.Agent):
    """Summarizes many notes in one text."""

    state: Desk

    @snapline.handler(durable=True)
    async def on_draft(self, message: Draft, ctx: snapline.Context) -> None:
        text = await ctx.step("write", ask, self.state.model, summary_of(message), self.state.calls)
        self.state.written += 1
        ctx.reply(Written(text))


def note_on(topic: str, found: Article) -> str:
    """Return the prompt about an article."""
    return f"We read about {topic}. Say in one short sentence what this is. {found.term}: {found.text}"


def summary_of(draft: Draft) -> str:
    """Return the final prompt."""
    return f"Write one sentence about {draft.topic}, from these notes. {' '.join(draft.notes[:DRAFT_NOTES])}"


def is_over(cut: snapline.Cut) -> bool:
    """Return whether every topic has its report."""
    state = cut.states["planner"]
    assert isinstance(state, Plans)
    return cut.is_quiet and set(state.topics) <= set(state.reports)


def fleet(
    topics: str = "checkpoint",
    steps: str = "20",
    dictionary: str = "",
    model: str = "",
    calls: str = "",
    pause: str = "0.05",
    period: str = "0.3",
    protocol: str = "chandy-lamport",
) -> snapline.Fleet:
    """`topics`: separated by commas; "": the fleet runs on and answers questions. `dictionary`: "foldoc", a file, or "" for the small one.

    `model`: "smollm2", or "" for recorded answers. `calls`: a file that records each call of the model. `pause`: seconds.
    """
    asked = [topic.strip() for topic in topics.split(",") if topic.strip()]
    book, notes = FOLDOC if dictionary == "foldoc" else dictionary, str(Path(calls).absolute()) if calls else ""
    agents: dict[str, snapline.Agent] = {
        "planner": Planner(Plans(asked, int(steps), model, notes, float(pause))),
        "writer": Writer(Desk(model, notes)),
    }
    agents |= {f"searcher-{number}": Searcher(Shelf(book)) for number in range(SEARCHERS)}
    return snapline.Fleet(
        "research-team",
        agents=agents,
        protocol=protocol,
        triggers=[snapline.Every(seconds=float(period))],
        stop_when=is_over if asked else None,
    )
