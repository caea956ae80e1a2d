"""The user guide as HTML pages, made of `examples/guide/*.md`: ``python -m tests.guide [FOLDER]``.

`README.md` there lists the pages in their order. Markdown, templates and colours are those of packages that streamkm
installs anyway (markdown-it-py and pygments come with rich). What a fenced block is called says what the tests do with
it: ``python`` and ``console`` run, ``py`` is parsed, and of ``sh`` the commands and options must be known.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

import streamkm

GUIDE = Path(__file__).parents[1] / "examples" / "guide"
SITE = GUIDE / "site"
REFERENCE = "reference/streamkm.html"
PICTURES = (".svg", ".png")
LEXERS = {"py": "python", "sh": "bash"}
COLOURS = {"light": "default", "dark": "github-dark"}

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Link = Callable[[str], str | None]


@dataclass(frozen=True)
class Section:
    """A heading of a page and the text below it, for the search."""

    page: str
    title: str
    anchor: str
    text: str


@dataclass(frozen=True)
class Page:
    """A page of the guide."""

    name: str
    title: str
    html: str
    sections: tuple[Section, ...]

    @property
    def place(self) -> str:
        """Its file in the site."""
        return place_of(f"{self.name}.md")


def build(folder: Path, *, with_reference: bool = False) -> list[str]:
    """Write the pages, what they show and their search; give the names of the files."""
    link = reference_link if with_reference else no_link
    pages = [read_page(name, link) for name in ("README", *page_names())]
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted([*SITE.glob("*.js"), *(path for path in GUIDE.iterdir() if path.suffix in PICTURES)]):
        shutil.copyfile(path, folder / path.name)
    (folder / "style.css").write_text((SITE / "style.css").read_text("utf-8") + code_colours("pre"), "utf-8")
    sections = [vars(section) for page in pages[1:] for section in page.sections]
    (folder / "sections.js").write_text(f"const SECTIONS = {json.dumps(sections, ensure_ascii=False)};\n", "utf-8")
    loader = FileSystemLoader(SITE)
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True).get_template(
        "page.html.jinja"
    )
    for at, page in enumerate(pages):
        values = {
            "page": page,
            "content": Markup(page.html),
            "pages": pages,
            "before": pages[at - 1] if at else None,
            "after": pages[at + 1] if at + 1 < len(pages) else None,
            "reference": REFERENCE if with_reference else None,
        }
        (folder / page.place).write_text(template.render(values), "utf-8")
    return [page.place for page in pages]


def page_names() -> list[str]:
    """The pages in the order of the list in `README.md`."""
    return re.findall(r"^\d+\. \[[^\]]+\]\(([a-z0-9-]+)\.md\)", text_of_page("README"), re.MULTILINE)


def text_of_page(name: str) -> str:
    """The Markdown of a page."""
    return (GUIDE / f"{name}.md").read_text("utf-8")


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and code of each fenced block of a page, in order."""
    return [(found[1], found[2]) for found in FENCE.finditer(text_of_page(name))]


def read_page(name: str, link: Link) -> Page:
    """Make a page of its Markdown."""
    parser = markdown()
    tokens = parser.parse(text_of_page(name))
    for token in tokens:
        lead_elsewhere(token.children or (), link)
    sections = sections_of(tokens, place_of(f"{name}.md"))
    html = parser.renderer.render(tokens, parser.options, {})
    return Page(name, sections[0].title, html, tuple(sections))


def markdown() -> MarkdownIt:
    """Markdown with tables and colours; HTML in it is text."""
    parser = MarkdownIt("commonmark", {"html": False, "highlight": coloured}).enable("table")
    parser.add_render_rule("code_inline", code_or_link)
    parser.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


def coloured(code: str, language: str, attributes: str) -> str:
    """A fenced block in colours."""
    if not language or language == "text":
        return str(escape(code))
    return highlight(code, get_lexer_by_name(LEXERS.get(language, language)), HtmlFormatter(nowrap=True))


def code_colours(selector: str) -> str:
    """The style sheet of the colours, for light and dark screens."""
    light, dark = (HtmlFormatter(style=COLOURS[name]).get_style_defs(selector) for name in ("light", "dark"))
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def code_or_link(renderer: object, tokens: Sequence[Token], at: int, options: object, environment: object) -> str:
    """Code in a line; a name of the reference is a link."""
    code, place = f"<code>{escape(tokens[at].content)}</code>", tokens[at].meta.get("place")
    return code if place is None else f'<a href="{escape(place)}">{code}</a>'


def lead_elsewhere(tokens: Sequence[Token], link: Link) -> None:
    """Have the links of a line lead to pages of the site, and names of the reference be links."""
    linked = False
    for token in tokens:
        if token.type in ("link_open", "link_close"):
            linked = token.type == "link_open"
        if token.type == "link_open":
            token.attrs["href"] = place_of(str(token.attrs["href"]))
        elif token.type == "code_inline" and not linked:
            token.meta["place"] = link(token.content)


def place_of(link: str) -> str:
    """Where a link between Markdown files leads in the site."""
    page, mark, anchor = link.partition("#")
    page = "index.html" if page == "README.md" else re.sub(r"\.md$", ".html", page)
    return page + mark + anchor


def no_link(code: str) -> None:
    """Without a reference, no name is a link."""


def reference_link(code: str) -> str | None:
    """Where the reference has a public name, or a method of a public class; None for other code."""
    found = re.fullmatch(r"(\w+)(?:\.([a-z]\w*))?(?:\(.*\))?", code)
    if not found or found[1] not in streamkm.__all__ or found[1].startswith("_"):
        return None
    value = getattr(streamkm, found[1])
    if found[2] is None:
        return f"{REFERENCE}#{found[1]}"
    return f"{REFERENCE}#{found[1]}.{found[2]}" if callable(getattr(value, found[2], None)) else None


def sections_of(tokens: Sequence[Token], page: str) -> list[Section]:
    """Give headings their anchors, and say what stands below each."""
    sections: list[Section] = []
    heading: Token | None = None
    for token in tokens:
        if token.type == "heading_open":
            heading = token
        elif token.type == "inline" and heading is not None:
            title = text_of(token)
            heading.attrs["id"] = anchor_of(title)
            sections.append(Section(page, title, anchor_of(title), ""))
            heading = None
        elif token.type in ("inline", "fence"):
            last = sections[-1]
            sections[-1] = Section(page, last.title, last.anchor, f"{last.text} {text_of(token)}".strip())
    return sections


def text_of(token: Token) -> str:
    """What a reader sees of a token."""
    if token.children is None:
        return token.content
    return "".join("\n" if part.type == "softbreak" else part.content for part in token.children)


def anchor_of(title: str) -> str:
    """The anchor that Markdown readers give to a heading."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "out/guide"))
