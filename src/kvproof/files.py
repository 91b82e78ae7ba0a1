"""Writes files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from .errors import KvproofError


def replace(path: Path, text: str, *, executable: bool = False) -> bool:
    """Write a file, so that at no time half of it can be read; left alone when it already says the same.

    Returns:
        Whether it was written.

    Raises:
        KvproofError: it cannot be written; what was there before still is.
    """
    content, temporary = text.encode(), None
    try:
        if path.is_file() and path.read_bytes() == content:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
        temporary.chmod(0o755 if executable else 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise KvproofError(f"{path} could not be written: {error.strerror or error}",
                           tip="free space, or make the folder writable") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return True
