"""The site builds strictly, every link in it leads somewhere, and nothing in it comes from another host; what the
guides tell a reader to type exists, and does what they say."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from invoke import Collection
from invoke.parser import Parser, ParserContext

from kvproof import loading, site
from kvproof.errors import CannotRunError, KvproofError, UsageError
from kvproof.paths import DOCS, EVIDENCE, IMAGES, PROJECT, RECIPES

pytestmark = pytest.mark.process

GUIDES = sorted((DOCS / "guides").glob("*.md"))
HOOKS = Path("src", "kvproof", "site_hooks.py")
METRICS = PROJECT / "tests" / "fixtures" / "metrics"
_ADDRESS = {"a": "href", "link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src",
            "object": "data", "form": "action", "use": "href"}
_STYLE_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


class HtmlPage(HTMLParser):
    """Addresses and anchors of one page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[tuple[str, str]] = []
        """Tag and address of everything that the page links to or loads."""
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self._in_style = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.anchors |= {known[name] for name in ("id", "name") if name in known}
        self.classes |= set(known.get("class", "").split())
        if _ADDRESS.get(tag) in known:
            self.links.append((tag, known[_ADDRESS[tag]]))
        self.links += [("style", address) for address in style_addresses(known.get("style", ""))]
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.links += [("style", address) for address in style_addresses(data)]


def style_addresses(text: str) -> list[str]:
    return [first or second for first, second in _STYLE_URL.findall(text)]


def faults(folder: Path) -> list[str]:
    """Links that lead nowhere, and whatever a browser would fetch from another host."""
    read = cache(HtmlPage)
    found = []
    for path in sorted(folder.rglob("*.html")):
        for tag, address in read(path).links:
            found += [f"{path.relative_to(folder)}: <{tag}> {fault}"
                      for fault in _faults_of(folder, path, tag, address, read)]
    for path in sorted(folder.rglob("*.css")):
        found += [f"{path.relative_to(folder)}: {fault}" for address in style_addresses(path.read_text())
                  for fault in _faults_of(folder, path, "style", address, read)]
    return found


def _faults_of(folder: Path, path: Path, tag: str, address: str, read) -> Iterator[str]:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return
    if parts.scheme or parts.netloc:
        if tag != "a":
            yield f"{address}: fetched from another host"
        return
    base = folder if parts.path.startswith("/") else path.parent  # as 404.html, which is served anywhere
    target = base / unquote(parts.path).lstrip("/") if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file() or not target.resolve().is_relative_to(folder.resolve()):
        yield f"{address}: no such file"
    elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in read(target).anchors:
        yield f"{address}: no such anchor"


@pytest.fixture(scope="module")
def mkdocs() -> None:
    """MkDocs and its theme are there; else the test is skipped, or fails where CI=true."""
    missing = [name for name in ("mkdocs", "material") if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"{' and '.join(missing)} not installed, and CI must leave nothing out")
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: pip install -e '.[docs]'")


@pytest.fixture(scope="module")
def built(mkdocs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site.build(tmp_path_factory.mktemp("site") / "site")


@pytest.fixture
def project(mkdocs: None, tmp_path: Path) -> Path:
    """A project of a few words whose site builds."""
    folder = tmp_path / "project"
    menu = ("index.md", "support-matrix.md", *(f"guides/{path.name}" for path in GUIDES), "decisions/0001-a.md")
    for name in menu:
        put(folder / "docs" / name, f"# {name}\n")
    put(folder / "evidence" / "a" / "run.json", "{}")
    put(folder / "recipes" / "a.yaml", "name: a\n")
    put(folder / ".secret", "hidden")
    put(folder.parent / "outside.txt", "outside")
    put(folder / HOOKS, (PROJECT / HOOKS).read_text())
    shutil.copy(PROJECT / "mkdocs.yml", folder)
    shutil.copytree(DOCS / "assets", folder / "docs" / "assets")
    return folder


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_every_link_leads_somewhere_and_nothing_comes_from_elsewhere(built: Path) -> None:
    found = faults(built)
    assert not found, "\n" + "\n".join(found)


def test_no_page_asks_for_what_the_theme_loads_from_elsewhere(built: Path) -> None:
    # The theme fetches a library from another host for pages with a diagram, and nothing else of the kind.
    assert not [path for path in built.rglob("*.html") if "mermaid" in HtmlPage(path).classes]


def test_the_search_has_every_page(built: Path) -> None:
    entries = json.loads((built / "search" / "search_index.json").read_text())["docs"]
    pages = {entry["location"].partition("#")[0] for entry in entries}
    expected = {path.relative_to(built).as_posix() for path in built.rglob("*.html")} - {"404.html"}
    assert pages == expected


def test_evidence_is_in_the_site(built: Path) -> None:
    files = sorted(EVIDENCE.glob("*/*.json"))
    assert files
    for path in files:
        assert (built / "evidence" / path.relative_to(EVIDENCE)).read_bytes() == path.read_bytes()


def test_the_matrix_links_to_evidence(built: Path) -> None:
    links = [address for _, address in HtmlPage(built / "support-matrix.html").links]
    assert [address for address in links if address.startswith("evidence/")]


def test_recipes_in_the_menu_need_no_entry_of_their_own(project: Path) -> None:
    for name in ("z-last", "a", "a-second", "index"):
        put(project / "docs" / "recipes" / f"{name}.md",
            f"<!-- Made. -->\n# The {name}\n\n[its file](../../recipes/a.yaml)\n")
    out = site.build(project.parent / "out", project)
    assert not faults(out)
    links = [address for _, address in HtmlPage(out / "index.html").links if address.startswith("recipes/")]
    assert list(dict.fromkeys(links)) == [f"recipes/{name}.html" for name in ("index", "a", "a-second", "z-last")]
    assert "The a-second" in (out / "index.html").read_text()
    assert (out / "recipes" / "a.yaml").is_file()


def test_it_builds_without_recipes(project: Path) -> None:
    assert not faults(site.build(project.parent / "out", project))


def test_escaped_text_is_shown_as_it_is(project: Path) -> None:
    put(project / "docs" / "index.md", r"""# Home

| A |
| --- |
| \<b\>\&lt; \| \~\~x\~\~ \#1 \*\`y\` |
""")
    text = (site.build(project.parent / "out", project) / "index.html").read_text()
    assert "<td>&lt;b&gt;&amp;lt; | ~~x~~ #1 *`y`</td>" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[x](guides/none.md)", "guides/none.md"),
        ("[x](../evidence/a/none.json)", "evidence/a/none.json"),
        ("[x][y]\n\n[y]: ../recipes/none.yaml", "recipes/none.yaml"),
        ("[x](#none)", "none"),
        ("[x](guides/quick-start.md#none)", "none"),
        ("[x](../recipes/)", "recipes"),
        ("[x](/recipes/a.yaml)", "absolute link"),
        ("[x](../.secret)", ".secret"),
        ("[x](../../outside.txt)", "outside.txt"),
    ],
)
def test_a_broken_link_fails_the_build_and_leaves_the_old_site(project: Path, text: str, said: str) -> None:
    put(project / "docs" / "index.md", f"# Home\n\n{text}\n")
    out = project.parent / "out"
    put(out / "search" / "search_index.json", "old")
    with pytest.raises(KvproofError, match="could not be built") as caught:
        site.build(out, project)
    assert said in "\n".join(caught.value.log_tail)
    assert [path.name for path in out.rglob("*")] == ["search", "search_index.json"]
    assert sorted(path.name for path in out.parent.iterdir() if "out" in path.name) == ["out", "outside.txt"]


def test_a_page_in_no_menu_fails_the_build(project: Path) -> None:
    put(project / "docs" / "guides" / "forgotten.md", "# Forgotten\n")
    with pytest.raises(KvproofError) as caught:
        site.build(project.parent / "out", project)
    assert "guides/forgotten.md" in "\n".join(caught.value.log_tail)


def test_links_to_files_of_the_repository_become_links_of_the_site(project: Path) -> None:
    put(project / "docs" / "guides" / "quick-start.md",
        "# Quick start\n\n[run](../../evidence/a/run.json) [part](<../../recipes/a.yaml>) [other]\n\n"
        "[other]: ../../notes.md\n")
    put(project / "notes.md", "# Not a page\n\n[broken](none.md)\n")
    out = site.build(project.parent / "out", project)
    assert not faults(out)
    assert (out / "notes.md").read_text().startswith("# Not a page")
    links = [address for _, address in HtmlPage(out / "guides" / "quick-start.html").links]
    assert {"../evidence/a/run.json", "../recipes/a.yaml", "../notes.md"} <= set(links)


def test_an_old_site_is_replaced(project: Path) -> None:
    out = project.parent / "out"
    put(out / "search" / "search_index.json", "old")
    put(out / "gone.html", "old")
    assert site.build(out, project) == out
    assert (out / "index.html").is_file()
    assert not (out / "gone.html").exists()
    assert [path for path in out.parent.iterdir() if path.name.startswith(".out")] == []


def test_a_folder_that_is_no_site_is_left_alone(project: Path) -> None:
    out = project.parent / "out"
    put(out / "thesis.txt", "mine")
    with pytest.raises(UsageError, match="is no site"):
        site.build(out, project)
    assert (out / "thesis.txt").read_text() == "mine"


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "material" else object())
    with pytest.raises(CannotRunError, match="material not installed") as caught:
        site.build(tmp_path / "out")
    assert caught.value.tip == "pip install -e '.[docs]'"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ('<a href="none.html">', "no such file"),
        ('<a href="#none">', "no such anchor"),
        ('<a href="../../etc/passwd">', "no such file"),
        ('<script src="https://unpkg.com/x"></script>', "another host"),
        ('<link href="//fonts.example/x.css">', "another host"),
        ('<p style="background: url(http://example.org/x.png)">', "another host"),
        ("<style>@import 'https://example.org/x.css'</style>", "another host"),
        ('<a href="https://example.org"><a id="x" href="#x"><img src="data:image/png;base64,AA">', None),
    ],
)
def test_the_checker_of_the_site_can_turn_red(tmp_path: Path, html: str, said: str | None) -> None:
    put(tmp_path / "index.html", html)
    found = faults(tmp_path)
    assert len(found) == (said is not None), found
    assert said is None or said in found[0]


# --- what the guides say --------------------------------------------------------------------------


def blocks(path: Path) -> list[tuple[str, str]]:
    """Language and text of each block of code."""
    return [(language, text) for _, language, text in _BLOCK.findall(path.read_text(encoding="utf-8"))]


def commands(path: Path) -> list[list[str]]:
    """Words after ./inv, wherever a page names a command."""
    code = [text for language, text in blocks(path) if language == "bash"]
    code += re.findall(r"`(\./inv [^`]+)`", path.read_text(encoding="utf-8"))
    found = []
    for line in "\n".join(code).replace("\\\n", " ").splitlines():
        if "./inv" not in line:
            continue
        words = list(shlex.shlex(line, posix=True, punctuation_chars=True))
        words = words[words.index("./inv") + 1:]
        end = next((at for at, word in enumerate(words) if re.fullmatch(r"[;&|<>()]+", word)), len(words))
        found.append(words[:end])
    return found


@cache
def tasks() -> Parser:
    """The command line that tasks.py makes."""
    spec = importlib.util.spec_from_file_location("tasks_of_the_guides", PROJECT / "tasks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Parser(contexts=Collection.from_module(module).to_contexts(), initial=ParserContext())


ALL_COMMANDS = sorted({(page.relative_to(DOCS).as_posix(), tuple(words))
                       for page in (DOCS / "index.md", *GUIDES) for words in commands(page)})


@pytest.mark.parametrize(("page", "words"), ALL_COMMANDS, ids=lambda value: value if isinstance(value, str)
                         else " ".join(value))
def test_every_command_of_the_guides_exists(page: str, words: tuple[str, ...]) -> None:
    _, called = tasks().parse_argv(list(words))
    name = called.args["name"].value if "name" in called.args else None
    if name is None or name.isupper():
        return
    if called.name == "lock":
        assert (IMAGES / name / "requirements.in").is_file()
    else:
        assert loading.find_recipe(name)


def test_the_guides_name_commands_at_all() -> None:
    assert len(ALL_COMMANDS) > 15


def test_a_command_that_does_not_exist_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("""`./inv recipe NAME --dry-run`

=== "Tab"

    ```bash
    A=b ./inv bundle x | cat # y
    ```
""")
    assert sorted(commands(page)) == [["bundle", "x"], ["recipe", "NAME", "--dry-run"]]
    for words in (["bundle", "x"], ["recipe", "NAME", "--faster"]):
        with pytest.raises(Exception, match="No idea what"):
            tasks().parse_argv(words)


def test_the_proof_that_is_read_reads_so() -> None:
    """Runs what the guide tells a reader to type, in its order, and compares the output."""
    given = [*blocks(DOCS / "guides" / "reading-a-proof.md"), ("", "")]
    names: dict[str, object] = {}
    compared = 0
    for (language, code), (kind, expected) in itertools.pairwise(given):
        seen = None
        if language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.chdir(PROJECT):
                exec(code, names)
            seen = output.getvalue()
        elif language == "bash" and kind == "text" and shutil.which("jq"):
            seen = subprocess.run(["bash", "-c", given[0][1] + code], cwd=PROJECT, capture_output=True, text=True,
                                  check=True).stdout
        if seen is not None and kind == "text":
            assert seen == expected
            compared += 1
    assert compared >= 5


def test_the_recipe_of_the_guide_loads(tmp_path: Path) -> None:
    parts = [text for language, text in blocks(DOCS / "guides" / "adding-a-recipe.md") if language == "yaml"]
    shutil.copytree(RECIPES, tmp_path / "recipes")
    path = tmp_path / "recipes" / "gemma4-31b-long.yaml"
    path.write_text("".join(parts))
    recipe = loading.load_recipe(path)
    assert recipe.engine.arguments["max-model-len"] == 131072
    assert recipe.engine.arguments["tensor-parallel-size"] == 2
    assert {part.versions for part in recipe.versioned} >= {">=0.21,<0.23", ">=0.27"}
    assert recipe.stands_for == "gemma4-31b"


def test_counters_of_the_offload_guide_are_those_of_the_servers() -> None:
    text = (DOCS / "guides" / "is-my-offload-working.md").read_text(encoding="utf-8")
    patterns = re.findall(r"/metrics \| grep -E '([^']+)'", text)
    pages = [(METRICS / name).read_text() for name in ("vllm-0.32.0-used.txt", "lmcache-0.5.6-used.txt")]
    # Native offloading does not start without a GPU, so no captured page has its counters.
    here = [pattern for pattern in patterns if not pattern.startswith("vllm:kv_offload")]
    assert len(here) >= 4
    for pattern in here:
        assert any(re.search(pattern, page, re.MULTILINE) for page in pages), pattern
