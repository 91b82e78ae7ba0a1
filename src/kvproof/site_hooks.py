"""What MkDocs is told besides mkdocs.yml, which names this file under `hooks`; nothing of kvproof imports it.

Pages link to files outside docs/ (evidence, recipes, locks) by the path that a code host needs. Here such files are
added to the site, each at its place in the repository, so MkDocs finds and checks those links as it does all others.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from kvproof import site_data
from kvproof.errors import KvproofError

_WIDE = ("support-matrix.md", site_data.PAGE)
"""Pages that are one wide table, and need the room that the menu at their side takes."""
_COMMENT = re.compile(r"\A\s*<!--.*?-->\s*", re.DOTALL)
"""Before a page's heading; MkDocs would not take the heading for its title."""
_LINK = re.compile(r"\]\(\s*<?([^)\s<>]+)|^ {0,3}\[[^\]^][^\]]*\]:\s*<?([^\s<>]+)", re.MULTILINE)


class _Copy(File):
    """A file of the repository that is copied as it is, Markdown too."""

    def is_documentation_page(self) -> bool:
        return False


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all evidence, linked or not, and what "Find a recipe" shows; fill the menu with the pages of its folders."""
    docs = Path(config.docs_dir)
    for path in sorted(docs.parent.glob("evidence/*/*.json")):
        _add(files, config, posixpath.join("..", path.relative_to(docs.parent).as_posix()))
    config.nav = [filled for entry in config.nav or [] for filled in _filled(entry, files)]
    if files.get_file_from_path(site_data.PAGE) is not None:
        config.nav.insert(1, {"Find a recipe": site_data.PAGE})
        _add_matrix_data(files, config)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add the files outside docs/ that a page links to; those that are not there are left for MkDocs to complain of."""
    if page.file.src_uri in _WIDE:
        page.meta["hide"] = ["navigation", "toc"]
    folder = posixpath.dirname(page.file.src_uri)
    for target in _targets(markdown):
        uri = posixpath.normpath(posixpath.join(folder, target))
        if uri.startswith("../"):
            _add(files, config, uri)
    return _COMMENT.sub("", markdown)


def _add_matrix_data(files: Files, config: MkDocsConfig) -> None:
    """Add what the page "Find a recipe" shows, which is made anew with each site and never committed."""
    project = Path(config.docs_dir).parent
    try:
        scripts = site_data.scripts(*(project / name for name in ("recipes", "evidence", "images")))
    except KvproofError as error:
        raise PluginError(f"{site_data.PAGE}: {error.message}") from None
    for name, text in scripts.items():
        files.append(File.generated(config, f"{site_data.FOLDER}/{name}", content=text))


def _targets(markdown: str) -> Iterator[str]:
    """Paths that Markdown links to, relative to its page; no fragments, and nothing on other hosts."""
    for inline, reference in _LINK.findall(markdown):
        parts = urlsplit(inline or reference)
        if parts.path and not parts.scheme and not parts.netloc:
            yield unquote(parts.path)


def _add(files: Files, config: MkDocsConfig, uri: str) -> None:
    """Add a file of the repository to the site.

    Args:
        uri: its path relative to docs/, as MkDocs looks for it.
    """
    inside = PurePosixPath(uri.removeprefix("../"))
    project = Path(config.docs_dir).parent
    # Hidden files are nobody's to read, and pages are linked to as pages.
    if any(part.startswith(".") for part in inside.parts) or inside.parts[0] == Path(config.docs_dir).name:
        return
    path = project / inside
    if files.get_file_from_path(uri) is None and path.is_file() and path.resolve().is_relative_to(project.resolve()):
        files.append(_Copy(uri, config.docs_dir, config.site_dir, config.use_directory_urls,
                           dest_uri=inside.as_posix(), inclusion=InclusionLevel.INCLUDED))


def _filled(entry: dict | str, files: Files) -> list[dict | str]:
    """A menu's entry; with its pages in place of a folder, and none at all for a folder without pages."""
    title, target = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
    if not isinstance(target, str) or not target.endswith("/"):
        return [entry]
    inside = [file.src_uri for file in files
              if file.is_documentation_page() and posixpath.dirname(file.src_uri) == target.rstrip("/")]
    pages = sorted(inside, key=lambda uri: (posixpath.basename(uri) != "index.md", uri.removesuffix(".md")))
    return [{title: pages}] if pages else []
