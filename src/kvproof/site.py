"""The documentation as a website, by MkDocs in strict mode: mkdocs.yml says what is in it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .errors import CannotRunError, KvproofError, UsageError
from .paths import PROJECT

_NEEDED = ("mkdocs", "material")
_MARK = Path("search", "search_index.json")
"""Every site has it, and hardly anything else does."""
_MAX_LINES = 12


def build(out: Path, project: Path = PROJECT) -> Path:
    """Build the site, whole or not at all.

    Args:
        out: its folder; a site that is there already is replaced.
        project: folder with mkdocs.yml and all that it names.

    Returns:
        The folder.

    Raises:
        CannotRunError: MkDocs or its theme is not installed.
        UsageError: there is something else than a site in the folder.
        KvproofError: a page links to what is not there, or the site could not be built or written for another reason;
            what was in the folder still is.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CannotRunError(f"the site cannot be built: {' and '.join(missing)} not installed",
                             tip="pip install -e '.[docs]'")
    out = out.absolute()
    if out.exists() and not (out.is_dir() and ((out / _MARK).is_file() or not any(out.iterdir()))):
        raise UsageError(f"{out} is there and is no site, so it is not replaced", tip="name another folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            new, old = Path(folder, "new"), Path(folder, "old")
            _run_mkdocs(project, new)
            _replace(out, new, old)
    except OSError as error:
        raise KvproofError(f"the site could not be written to {out}: {error.strerror or error}",
                           tip="free space, or make the folder writable") from None
    return out


def _replace(out: Path, new: Path, old: Path) -> None:
    if out.exists():
        out.rename(old)
    try:
        new.rename(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise


def _run_mkdocs(project: Path, out: Path) -> None:
    # -P: the folders of the project must not be taken for packages.
    words = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--config-file", str(project / "mkdocs.yml"),
             "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's own advertisement
    done = subprocess.run(words, cwd=project, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if done.returncode:
        lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip() and not line.startswith("INFO")]
        raise KvproofError(f"the site could not be built: mkdocs ended with exit status {done.returncode}",
                           tip="mend what it names; ./inv docs and ./inv matrix write the pages made from recipes",
                           log_tail=lines[-_MAX_LINES:])
