"""One self-contained HTML file: the screens one below the other, with their style and without scripts.

Its content security policy enforces that: the style is allowed by its digest, everything else is forbidden.
"""

import base64
import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from urllib.parse import unquote, urlsplit

from snapline.errors import UsageError
from snapline.view.export import SNAPSHOT, ExportedScreen
from snapline.view.markup import Markup, join, tag
from snapline.view.static_markup import ids_of, standing

MORE_STYLE = """
/* a file: screens one below the other */
article { scroll-margin-top: 56px; padding-bottom: 24px; margin-bottom: 40px; border-bottom: 1px solid var(--edge); }
article:last-child { border-bottom: 0; }
[id] { scroll-margin-top: 64px; }
.about { margin: 4px 0 28px; color: var(--quiet); }
"""


def export_page(fleet: str, screens: Sequence[ExportedScreen], about: str) -> Markup:
    """Return the file. `about`: time, source and content, in a sentence or two."""
    shown = epoch_of(screens)
    ids = {each.id for each in screens}.union(*(ids_of(each.body, each.id) for each in screens))

    def place(href: str) -> str | None:
        return _place(href, shown)

    articles = [
        tag("article", standing(each.body, each.id, place, ids), id=each.id, aria_label=each.name) for each in screens
    ]
    links = [tag("a", each.name, href=f"#{each.id}") for each in screens]
    top = tag("header", tag("span", "snapline", class_="brand"), tag("nav", *links, aria_label="Screens"), class_="top")
    main = tag("main", tag("p", about, class_="about"), *articles, id="main", tabindex="-1")
    body = tag("body", tag("a", "Skip to content", href="#main", class_="skip"), top, main)
    return join([Markup("<!DOCTYPE html>\n"), tag("html", _head(fleet), body, lang="en"), Markup("\n")])


def epoch_of(screens: Sequence[ExportedScreen]) -> int:
    """Return the epoch of the snapshot in the file; 0: none."""
    return max([each.epoch for each in screens if each.id == SNAPSHOT], default=0)


def _head(fleet: str) -> Markup:
    style = Markup((resources.files(__package__) / "static" / "view.css").read_text(encoding="utf-8") + MORE_STYLE)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{fleet or 'a fleet'} · snapline"),
        tag("style", style),
    )


def _place(href: str, epoch: int) -> str | None:
    """Return where in the file the target of a view address is."""
    parts = urlsplit(href)
    match parts.path.split("/"):
        case ["", ""]:
            return f"fleet-{parts.fragment}" if parts.fragment else "fleet"
        case ["", "epochs", number] if number == str(epoch):
            return SNAPSHOT
        case ["", "agents", agent]:
            return f"{SNAPSHOT}-agent-{unquote(agent)}"
        case ["", screen]:
            return screen
    return None


def check_free(path: Path, *, is_forced: bool) -> None:
    """Raise UsageError if a file of this name exists and may not be replaced."""
    if path.exists() and not is_forced:
        raise UsageError(f"{path} is there already: give another name, or --force")


def write_file(path: Path, page: str, *, is_forced: bool) -> int:
    """Write the file atomically, readable by its owner only; return its size in bytes.

    Raises:
        UsageError: the file exists already.
        OSError: the file cannot be written.
    """
    data = page.encode("utf-8", "replace")
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_forced:
            os.replace(scratch, path)
        else:
            os.link(scratch, path)  # fails if the file exists
    except FileExistsError as error:
        raise UsageError(f"{path} is there already: give another name, or --force") from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()
    return len(data)
