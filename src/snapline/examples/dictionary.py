"""A dictionary whose articles refer to each other: FOLDOC, as installed by Debian's package `dict-foldoc`, or the small one below.

Each headword starts a line, its article follows with indentation, and a reference to another headword is written {like this}.
"""

import functools
import gzip
import re
from pathlib import Path

import snapline

FOLDOC = "/usr/share/dictd/foldoc.dict.dz"

TEXT_MAX = 600
"""Number of characters of an article that are read; a small model cannot use more."""

LINK = re.compile(r"\{([^{}()]+?)(?:\s*\([^{}]*\))?\}")


class Article(snapline.Message):
    """`links`: headwords of the dictionary, without duplicates, in the order of the text."""

    term: str
    text: str
    links: list[str]


def look_up(dictionary: str, term: str) -> Article:
    """Return the article on `term`, empty if there is none. `dictionary`: a file; "" = the small one."""
    texts = _read(dictionary)
    text = texts.get(term.lower(), "")
    links = [" ".join(link.split()) for link in LINK.findall(text)]
    known_links = [link for link in dict.fromkeys(links) if link.lower() in texts]
    return Article(term, LINK.sub(r"\1", text)[:TEXT_MAX], known_links)


@functools.cache
def _read(dictionary: str) -> dict[str, str]:
    """Return headword in lower case → article as one line."""
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
