"""A research team of agents. A planner explores a dictionary, searchers look up terms, and a writer summarizes the results.

The planner's plan is a single durable turn with at least twenty steps. For each term, the planner calls a searcher and asks a language
model for a summary in one sentence. The article's references are added to the terms to look up. If a host crashes during the turn, no
answer that was already received is lost.

    snapline run snapline.examples.research_team:fleet --hosts 2 --arg topics=checkpoint
    snapline run snapline.examples.research_team:fleet --arg dictionary=foldoc --arg model=smollm2 --arg topics='checkpoint,deadlock'

The articles of the dictionary refer to each other. The dictionary is FOLDOC from the Debian package `dict-foldoc`, or the small dictionary
below. Each headword is at the start of a line, and its article follows in indented lines. References to other headwords are written {like
this}.
"""

import functools
import gzip
import re
from pathlib import Path

import msgspec

import snapline
from snapline.examples.language_model import ask

FOLDOC = "/usr/share/dictd/foldoc.dict.dz"

TEXT_MAX = 600
"""Largest number of characters of an article that are read. A small model cannot use more."""

LINK = re.compile(r"\{([^{}()]+?)(?:\s*\([^{}]*\))?\}")


class Article(snapline.Message):
    """An article in the dictionary. `links` contains the headwords to which the article refers, without duplicates, in the order of the
    text."""

    term: str
    text: str
    links: list[str]


def look_up(dictionary: str, term: str) -> Article:
    """Return the article about `term`, or an empty article if the dictionary has none. `dictionary` is the path of a dictionary file, or ""
    for the small dictionary."""
    texts = _read(dictionary)
    text = texts.get(term.lower(), "")
    links = [" ".join(link.split()) for link in LINK.findall(text)]
    known_links = [link for link in dict.fromkeys(links) if link.lower() in texts]
    return Article(term, LINK.sub(r"\1", text)[:TEXT_MAX], known_links)


@functools.cache
def _read(dictionary: str) -> dict[str, str]:
    """Map each headword to its article, which is joined into one line. Headwords are converted to lower case."""
    text = gzip.decompress(Path(dictionary).read_bytes()).decode() if dictionary else SMALL
    lines_of: dict[str, list[str]] = {}
    article: list[str] = []
    for line in text.splitlines():
        if line and not line[0].isspace():
            article = lines_of.setdefault(line.strip().lower(), [])
        elif line:
            article.append(line.strip())
    return {term: " ".join(lines) for term, lines in lines_of.items()}


SMALL = """
checkpoint
   The saved state of one {agent}. A checkpoint of the whole {fleet} is a {cut}.
agent
   A long-lived program with a {state}, which takes one {message} at a time. It lives on a {host}.
fleet
   All agents of one system, with the {coordinator} that watches over them and the {store} that keeps what they save.
cut
   One {checkpoint} of each {agent}, and the {channel} states between them. It is consistent if it has no {orphan}.
state
   All that an {agent} remembers. What is kept anywhere else is lost in a {crash}.
message
   What one {agent} says to another. It travels on a {channel}, and causes a {turn}.
host
   A process of the operating system in which many agents live. When it dies, a {recovery} begins.
coordinator
   The process that decides: which {host} is lost, and which {cut} the {fleet} goes back to. Its {replica}s agree by a {log}.
store
   The disk or the bucket where each {checkpoint} lies. What is {damaged} there is found by its {digest}.
channel
   The directed path from one {agent} to another. What was sent and not received yet is {in transit}.
orphan
   A {message} that was received inside a {cut}, and sent outside of it: nobody has sent it, after a {rollback}.
crash
   The end of a process in the middle of anything, at any line. A {recovery} makes good for it.
turn
   The handling of one {message}. It is {atomic}, unless it is a durable one, which goes on after a {step}.
recovery
   The way back of a {fleet} to its last {cut}, and on from there. What was {in transit} is delivered again.
replica
   One of several processes that keep the same {log}. A {majority} of them is enough to go on.
log
   A sequence of entries to which one only appends. What stands in it before a {crash} is found after it.
damaged
   Not as it was written. A {digest} tells, before anything is used.
digest
   A short number that stands for many bytes: other bytes have another one.
in transit
   Sent inside a {cut}, and not yet received inside it. Without it a {recovery} would lose a {message}.
rollback
   To forget what was done after a {cut}. An {effect} outside cannot be forgotten.
atomic
   Done as a whole, or not at all.
step
   A call to the outside in the middle of a durable {turn}. When it has ended, it is not made again.
majority
   More than half: any two of them have a member in common, which knows what was decided.
effect
   Something that is done outside of the {fleet}, such as a payment. It needs a {key}.
key
   A name for an {effect}, by which the one who is asked twice knows that it is the same.
"""


SEARCHERS = 2

DRAFT_NOTES = 5
"""Largest number of notes that the writer reads. A small model cannot use more."""


class Question(snapline.Message):
    """A question that contains the topic to research."""

    topic: str


class Look(snapline.Message):
    term: str


class Draft(snapline.Message):
    topic: str
    notes: list[str]


class Written(snapline.Message):
    text: str


class Report(snapline.Message):
    """The report about a topic. `read` contains the terms that were looked up, in their order."""

    topic: str
    text: str
    read: list[str]


class Plans(msgspec.Struct):
    """State of a planner. `pause_s` is the number of seconds between two steps of the plan. Without a pause, the small example would end
    almost immediately."""

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
    """An agent that researches its own topics one after another, as well as topics that clients request."""

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
    """An agent that looks up articles in the dictionary."""

    state: Shelf

    @snapline.handler
    async def on_look(self, message: Look, ctx: snapline.Context) -> None:
        self.state.looked_up += 1
        ctx.reply(await ctx.step("look up", look_up, self.state.dictionary, message.term))


class Writer(snapline.Agent):
    """An agent that summarizes many notes in one text."""

    state: Desk

    @snapline.handler(durable=True)
    async def on_draft(self, message: Draft, ctx: snapline.Context) -> None:
        text = await ctx.step("write", ask, self.state.model, summary_of(message), self.state.calls)
        self.state.written += 1
        ctx.reply(Written(text))


def note_on(topic: str, found: Article) -> str:
    """Return the prompt that requests a note about an article."""
    return f"We read about {topic}. Say in one short sentence what this is. {found.term}: {found.text}"


def summary_of(draft: Draft) -> str:
    """Return the prompt that requests a summary of a draft's notes."""
    return f"Write one sentence about {draft.topic}, from these notes. {' '.join(draft.notes[:DRAFT_NOTES])}"


def is_over(cut: snapline.Cut) -> bool:
    """Return whether every topic has a report."""
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
    """Return the fleet.

    Args:
        topics: topics separated by commas. If `topics` is empty, the fleet keeps running and answers clients' questions.
        steps: maximum number of terms that a plan looks up.
        dictionary: "foldoc", the path of a dictionary file, or "" for the small dictionary.
        model: "smollm2", or "" to use recorded answers.
        calls: file for recording each call of the model, or "" to record no calls.
        pause: seconds between two steps of a plan.
        period: seconds between checkpoints.
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
