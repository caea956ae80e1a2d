"""The user guide: its code runs and prints what it says, commands are known, links lead somewhere, clusters start."""

from __future__ import annotations

import ast
import json
import multiprocessing.util
import re
import shlex
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import streamkm
from streamkm.cli.main import main
from streamkm.reports.page import _HEADS, _cards
from tests.guide import FENCE, GUIDE, SITE, blocks, build, page_names, read_page, reference_link, text_of_page
from tests.guide_outputs import NOTEBOOKS, cells_of
from tests.programs import run_program
from tests.tables import cases

PAGES = page_names()
FRESH = ("memory", "why")
"""Pages with memory limits, which a process that has run many tests is above."""
LONG = ("cells", "choosing-k", "embeddings", "images", "report", "scaling", "sizes", "text", "why")
"""Pages whose code takes a second and more."""
SMALLER = {"65_536": "2_048"}
"""Numbers of pages, and those that the tests take in their place."""
LINK = re.compile(r"\]\(([^)\s]+)\)")


def commands(code, prompt=""):
    """The commands of streamkm in a block, a word an entry."""
    lines = code.replace("\\\n", " ").splitlines()
    given = [line.removeprefix(prompt) for line in lines if line.startswith(prompt)]
    return [shlex.split(line, comments=True)[1:] for line in given if line.split()[:1] == ["streamkm"]]


def promised(code):
    """What a block says that it prints: the comment behind a print."""
    return re.findall(r"^\s*print\(.*\)  # (.+)$", code, re.MULTILINE)


def smaller(code):
    """A block with the numbers that the tests take."""
    for written, taken in SMALLER.items():
        code = code.replace(written, taken)
    return code


def assert_known(words):
    command = main.commands[words[0]]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
    assert given <= known | {"-h", "--help"}, words


def assert_printed(code, printed):
    """What a block promises is printed, in its order."""
    start = 0
    for text in promised(code):
        found = printed.find(text, start)
        assert found >= 0, f"{text!r} is not in {printed!r} from {start}"
        start = found + len(text)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in PAGES])
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch, capsys):
    multiprocessing.util.get_temp_dir()  # that of this process, which outlives the test
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    page = ModuleType("page")
    run = [(language, smaller(code)) for language, code in blocks(name)]
    if name in FRESH:
        code = "\n".join(code for language, code in run if language == "python")
        Path("page.py").write_text(code, "utf-8")
        done = run_program(["page.py"], timeout=240)
        assert done.returncode == 0, done.stderr
        assert_printed(code, done.stdout)
    for at, (language, code) in enumerate(run):
        if language == "python" and name not in FRESH:
            exec(compile(code, f"{name}.md, block {at}", "exec"), page.__dict__)
            assert_printed(code, capsys.readouterr().out)
        elif language == "console":
            for words in commands(code, "$ "):
                if name in FRESH:
                    done = run_program(["-m", "streamkm", *words], timeout=120)
                    assert done.returncode == 0, (words, done.stderr)
                    continue
                done = CliRunner().invoke(main, words, catch_exceptions=False)
                assert done.exit_code == 0, (words, done.output)
        elif language == "py":
            ast.parse(code)


@cases("name", ["README", *PAGES])
def test_commands_of_a_page_are_known_its_links_lead_somewhere_and_its_sentences_are_short(name):
    for language, code in blocks(name):
        assert language in ("python", "py", "console", "sh", "text", "yaml"), language
        for words in commands(code, "$ " if language == "console" else ""):
            assert_known(words)
    for link in LINK.findall(FENCE.sub("", text_of_page(name))):
        if re.match(r"https?://", link):
            continue
        place, _, anchor = link.partition("#")
        target = (GUIDE / place) if place else GUIDE / f"{name}.md"
        assert target.is_file(), link
        if anchor:
            assert anchor in {section.anchor for section in read_page(target.stem, lambda code: None).sections}, link
    prose = re.sub(r"^([|#!].*|)$", "\n", FENCE.sub("\n\n", text_of_page(name)), flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n- |\n\d+\. ", prose) if name != "README" else ():
        for sentence in re.split(r"(?<=[.?!])\s+", paragraph):
            assert len(sentence.split()) <= 30, sentence


def test_each_page_is_listed_each_file_is_used_and_every_public_name_is_mentioned():
    assert {path.stem for path in GUIDE.glob("*.md")} == {"README", *PAGES}
    shown = {link for name in PAGES for link in LINK.findall(text_of_page(name))}
    assert {path.name for path in GUIDE.iterdir() if path.suffix in (".png", ".svg")} <= shown
    text = "\n".join(map(text_of_page, PAGES))
    assert not [name for name in streamkm.__all__ if not name.startswith("_") and f"`{name}" not in text]


class Site(HTMLParser):
    """The anchors and links of a page, and what it loads."""

    def __init__(self, html):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), set(), set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.anchors.add(named.get("id"))
        if tag == "a":
            self.links.add(named["href"])
        elif tag in ("link", "script", "img"):
            self.loaded.add(named.get("href") or named.get("src"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, and the names of its pages."""
    folder = tmp_path_factory.mktemp("site")
    return folder, build(folder)


def test_the_site_is_whole_and_asks_no_other_host(site):
    folder, written = site
    assert written == ["index.html", *(f"{name}.html" for name in PAGES)]
    pages = {name: Site((folder / name).read_text("utf-8")) for name in written}
    for name, page in pages.items():
        for loaded in page.loaded - {"data:,"}:
            assert (folder / loaded).is_file(), (name, loaded)
        for link in page.links:
            if re.match(r"https?://", link):
                continue
            place, _, anchor = link.partition("#")
            assert place in pages or not place, (name, link)
            assert not anchor or anchor in pages[place or name].anchors, (name, link)
    assert "prefers-color-scheme: dark" in (folder / "style.css").read_text("utf-8")
    assert not re.search(r"https?:", "".join(path.read_text("utf-8") for path in SITE.rglob("*.*")))


def test_names_of_the_reference_are_links():
    assert reference_link("StreamKMeans") == "reference/streamkm.html#StreamKMeans"
    assert reference_link("StreamKMeans.plan(X)") == "reference/streamkm.html#StreamKMeans.plan"
    assert reference_link("StreamKMeans.nothing") is None
    assert reference_link("labels_") is None


def test_each_part_of_a_report_is_explained():
    result = {
        "objective": 2.0, "objective_per_row": 1.0, "explained": 0.5, "simplified_silhouette": 0.5, "silhouette": 0.4,
        "silhouette_error": 0.1, "silhouette_rows": 500, "silhouette_sketched": False, "possible_gain": 0.1,
        "expected_inertia": 2.0, "expected_inertia_error": 0.1, "distortion": 1.5, "converged": False, "n_iter": 3,
    }  # fmt: skip
    tiles = {tile[0] for tile in (*_cards(result), *_cards({**result, "silhouette_error": None}))}
    assert tiles == {"objective", "explained variance", "silhouette", "simplified silhouette"}
    for head in (*tiles, *(head for head, _ in _HEADS.values()), "words"):
        assert f"\n| {head} |" in text_of_page("report"), head


SEARCH = """
class Item {
  constructor() { this.kids = []; }
  append(...kids) { this.kids = kids; }
  replaceChildren(...kids) { this.kids = kids; }
}
const parts = {"#search": new Item(), "#found": new Item(), "#pages": new Item()};
parts["#search"].value = "Missing values";
parts["#search"].addEventListener = () => {};
globalThis.document = {querySelector: name => parts[name], createElement: () => new Item()};
globalThis.matchMedia = () => ({matches: false});
const run = name => require("vm").runInThisContext(require("fs").readFileSync(name, "utf8"));
run("sections.js");
run("search.js");
console.log(JSON.stringify(parts["#found"].kids.map(item => item.kids[0].href)));
"""


def test_the_search_is_short_and_finds_headings_first(site):
    assert len((SITE / "search.js").read_text("utf-8").splitlines()) <= 60
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    done = subprocess.run([node, "-e", SEARCH], cwd=site[0], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert set(found[:2]) == {"scaling.html#scaling-and-missing-values", "scaling.html#missing-values"}
    assert 2 < len(found) <= 12


@cases("name", NOTEBOOKS)
def test_notebooks_have_the_code_of_their_pages(name):
    notebook = json.loads((GUIDE / f"{name}.ipynb").read_text("utf-8"))
    told = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert told == cells_of(name), "python -m tests.guide_outputs makes the notebooks anew"
    assert all(
        cell["outputs"] for cell in notebook["cells"] if "print(" in "".join(cell["source"]) and "outputs" in cell
    )


def block_with(text):
    """The one block of the page that contains a text."""
    (code,) = (code for _, code in blocks("cluster") if text in code)
    return code


def test_workers_compile_as_they_start(monkeypatch):
    given: list[str] = []
    monkeypatch.setattr(main.commands["warm"], "invoke", lambda context: given.append(context.info_name))
    exec(block_with("def dask_setup"), page := {})
    page["dask_setup"](None)
    assert given == ["warm"]


def test_a_job_script_has_the_options_of_the_page(monkeypatch, capsys):
    jobqueue = pytest.importorskip("dask_jobqueue")
    made = []

    class Quiet(jobqueue.SLURMCluster):
        def __init__(self, **options):
            made.append(self)
            super().__init__(**options, scheduler_options={"dashboard_address": ":0"})

    monkeypatch.setattr(jobqueue, "SLURMCluster", Quiet)
    try:
        exec(block_with("import SLURMCluster"), {})
    finally:
        for cluster in made:
            cluster.close()
    script = capsys.readouterr().out
    options = ("--nthreads 1", "--nworkers 4", "--memory-limit 7.45GiB", "--local-directory $TMPDIR")
    for text in (*options, "/shared/kernels"):
        assert text in script


def test_a_specification_for_kubernetes_is_made(monkeypatch):
    operator, given = pytest.importorskip("dask_kubernetes.operator"), []

    def made(custom_cluster_spec):
        given.append(custom_cluster_spec)

    monkeypatch.setattr(operator, "KubeCluster", made)
    exec(block_with("make_cluster_spec"), {})
    (spec,) = given
    assert spec["kind"] == "DaskCluster"
    assert spec["spec"]["worker"]["replicas"] == 20
    (container,) = spec["spec"]["worker"]["spec"]["containers"]
    assert container["args"][-2:] == ["--nthreads", "1"]
    assert container["resources"]["limits"]["memory"] == "8Gi"
