"""Text made safe for a terminal, whatever its author.

Inputs, agents, hosts, certificates and stores hold text of others, and a terminal obeys what stands in it: an escape sequence hides lines or
sets a title, a bidirectional mark turns names around. So everything that is printed or logged passes here, and people see what stands there.
"""

import re

_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls but tab and newline, marks of direction, separators of lines and paragraphs, and halves of surrogate pairs, which nothing can encode."""


def printable(text: str) -> str:
    r"""The text with `\x1b` for ESC, and so on. JSON stays JSON, and means the same: there only what has the form `\u009b` is left to be replaced."""
    return _UNFIT.sub(_escaped, text) if _UNFIT.search(text) else text


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"
