"""Hooks of the documentation site (`mkdocs.yml`): what makes a site of pages that are written for readers of the repository.

- Pages that exist only in the site are added (`site_pages.py`).
- Links out of docs/ lead to the page of the site that shows the file.
- Lists are indented as Python-Markdown wants them: by four columns. CommonMark takes two or three.
- Moving pictures become part of their page, so that they follow its colours, and get a switch that stops them.
- `sitemap.xml` is left out.
- Each page's Markdown is written next to it, and `llms.txt` lists all.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs import make_api, moving_pictures, site_pages

if TYPE_CHECKING:  # the texts can be tested without MkDocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation, Section
    from mkdocs.structure.pages import Page

OUTSIDE = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the top folder, and the pages of the site that show them."""

_written: dict[str, str] = {}
"""Markdown of each page of this build, by its file in the site."""

_navigation: "list[Navigation]" = []


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages that exist only in the site."""
    from mkdocs.structure.files import File

    _written.clear()
    _navigation.clear()
    for name, content in site_pages.pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def on_nav(nav: "Navigation", **_: Any) -> "Navigation":
    """Remember the order of the pages, for `llms.txt`."""
    _navigation.append(nav)
    return nav


def on_page_markdown(markdown: str, page: "Page", **_: Any) -> str:
    """Rewrite links out of docs/, and keep the page's Markdown."""
    depth = page.file.src_uri.count("/")
    for name, shown in OUTSIDE.items():
        markdown = markdown.replace(f"]({'../' * (depth + 1)}{name}", f"]({'../' * depth}{shown}")
    _written[page.file.src_uri] = markdown
    return with_wide_lists(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Put moving pictures into their page."""
    return re.sub(
        r'<p><img alt="([^"]*)" src="([^"]*)"\s*/?></p>', lambda found: moving(found[0], found[1], found[2]), html
    )


def on_post_template(output_content: str, template_name: str, config: "MkDocsConfig") -> str:
    """Leave out the list of pages for search engines, which is empty for a site without an address."""
    return "" if template_name == "sitemap.xml" and not config.site_url else output_content


def on_post_build(config: "MkDocsConfig") -> None:
    """Write the pages' Markdown, and `llms.txt`."""
    site = Path(config.site_dir)
    for name, markdown in _written.items():
        path = site / _markdown_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(re.sub(r"\]\(((?:\w+/)*)README\.md", r"](\1index.md", without_directives(markdown)))
    (site / "llms.txt").write_text("\n".join(llms(config.site_name, str(config.site_description))) + "\n")


def with_wide_lists(markdown: str) -> str:
    """Return Markdown whose nested lists and continued items are indented by four columns, and whose lists begin after an empty line."""
    lines: list[str] = []
    fence = extra = 0
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        if line.lstrip().startswith("```"):
            fence = not fence
            extra = 4 - indent if fence and 0 < indent < 4 else extra
            lines.append(" " * extra + line)
            extra = extra if fence else 0
        elif fence:
            lines.append(" " * extra + line if line else line)
        else:
            is_item = re.match(r"([-*]|\d+\.) ", line) is not None
            is_after_text = bool(lines) and re.match(r"\s|[-*] |\d+\. |$", lines[-1]) is None
            lines += [""] if is_item and is_after_text else []
            lines.append("    " + line.lstrip(" ") if 2 <= indent < 4 else line)
    return "\n".join(lines) + "\n"


def moving(image: str, words: str, source: str) -> str:
    """Return a moving picture as part of a page, or the image itself if it does not move."""
    name = source.rpartition("/")[2]
    if name not in moving_pictures.PICTURES:
        return image
    svg = (moving_pictures.FOLDER / name).read_text().replace("<svg ", f'<svg aria-label="{words}" ', 1)
    switch = '<label class="stop"><input type="checkbox"> Stop the picture</label>'
    return f'<div class="moving">{switch}\n<div class="frame-of-picture" tabindex="0" role="region" aria-label="Moving picture">{svg}</div></div>'


def without_directives(markdown: str) -> str:
    """Return Markdown in which the docstrings of a module replace the instruction to mkdocstrings, and without comments."""

    def described(found: re.Match[str]) -> str:
        names = found[2].split(", ")
        text = make_api.parse_module(found[1])[0]
        docstring = re.match(r'"""(.*?)"""', text, re.DOTALL)
        return f"{docstring[1].strip() if docstring else ''}\n\nPublic names: {', '.join(f'`{name}`' for name in names)}.\n"

    markdown = re.sub(r"^<!-- .* -->\n", "", markdown, flags=re.MULTILINE)
    return re.sub(r"::: (\S+)\n    options:\n      members: \[(.*)\]\n", described, markdown)


def llms(name: str, description: str) -> Iterator[str]:
    """Yield the lines of `llms.txt`: the pages in the order of the navigation, each with its first sentence."""
    yield f"# {name}\n\n> {description}.\n"
    for item in _navigation[-1].items:
        if item.is_section:
            yield f"\n## {item.title}\n"
            yield from _lines_of(item)
        elif item.is_page:
            yield _line_of(item)


def _lines_of(section: "Section") -> Iterator[str]:
    for item in section.children:
        if item.is_section:
            yield from _lines_of(item)
        elif item.is_page:
            yield _line_of(item)


def _line_of(page: "Page") -> str:
    markdown = _written[page.file.src_uri]
    prose = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    first = re.search(r"^(?=[A-Z`*[])(.+?[.:])(?:\s|$)", prose, re.MULTILINE)
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)|\*\*|`", r"\1", first[1]).rstrip(":.") if first else ""
    return f"- [{page.title}]({_markdown_of(page.file.src_uri)}): {words}"


def _markdown_of(name: str) -> str:
    """Return the file in the site with a page's Markdown."""
    return re.sub(r"(^|/)README\.md$", r"\1index.md", name)
