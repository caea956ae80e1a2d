"""The site of guide and reference: every public method is on its estimator's page, and links lead somewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import streamkm

pytest.importorskip("pdoc", reason="needs the extra docs")
ESTIMATORS = ("StreamKMeans", "StreamKernelKMeans", "IncrementalKMeans")


class Page(HTMLParser):
    """The anchors, links and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors, self.order, self.links, self.text = set(), [], set(), ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.anchors.add(named.get("id"))
        self.order.append(named.get("id"))
        if tag == "a" and "href" in named:
            self.links.add(named["href"])

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Each page of the reference by its path."""
    from tests.reference import build

    folder = tmp_path_factory.mktemp("reference")
    build(folder)
    shown = (folder / "reference" / "streamkm.html").read_text("utf-8")
    assert "prefers-color-scheme" in shown
    assert re.search(r"\.pdoc \.inherited ?{ ?overflow-wrap: ?anywhere", shown)  # on narrow screens
    assert not re.search(r"<(?:link|script|img)[^>]*https?:", shown)
    return {path.resolve(): Page(path.read_text("utf-8")) for path in folder.rglob("*.html")}


def test_the_first_page_begins_with_the_estimator_and_has_every_public_method(pages):
    first_page = next(page for path, page in pages.items() if path.name == "streamkm.html")
    names = [name for name in first_page.order if name in streamkm.__all__]
    assert names[0] == "StreamKMeans"
    for name in ESTIMATORS:
        estimator = getattr(streamkm, name)
        methods = {each for each in dir(estimator) if not each.startswith("_") and callable(getattr(estimator, each))}
        assert {"fit", "predict", "transform", "save", "load"} <= methods
        assert {f"{name}.{method}" for method in methods} <= first_page.anchors
    assert "<x, y>" in first_page.text  # formulas are shown


def test_links_lead_somewhere(pages):
    dead, crossed = [], set()
    for path, page in pages.items():
        for link in page.links:
            place, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = pages.get((path.parent / place).resolve() if place else path)
            crossed.add((path.parent.name == "reference", place.rpartition("/")[0]))
            if target is None or (anchor and anchor not in target.anchors):
                dead.append((path.name, link))
    assert not dead
    assert {(False, "reference"), (True, "..")} <= crossed  # from the guide to the reference, and back
