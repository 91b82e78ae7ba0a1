"""Reads the signature files, and says exactly where one is damaged."""

from __future__ import annotations

import contextlib
import re
from functools import cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from ..errors import KvproofError, RecipeError, nearest
from ..strict_yaml import parse, place_of, read_text
from .model import Signature

FOLDER = Path(__file__).parent
_TIP = "compare with another file of the folder; `git diff` shows what was changed"
# libyaml's parser is ten times as fast; what it refuses is read again by the strict one, which knows lines.
_FAST: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KEYS = re.compile(r"^[A-Za-z_]\w*(?=:)", re.M)
_REFERENCES = re.compile(r"(?:^|[\s\[{,])[&*]\w", re.M)


@cache
def load(folder: Path = FOLDER) -> tuple[Signature, ...]:
    """Every signature of a folder, by file name.

    Raises:
        KvproofError: a file is damaged; file, line and key are named.
    """
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise KvproofError(f"{folder}: no signature files (*.yaml) here", tip="restore them from version control")
    return tuple(_signature(path) for path in paths)


def _signature(path: Path) -> Signature:
    try:
        try:
            signature = Signature.model_validate(_content(path))
        except ValidationError as error:
            raise KvproofError(_described(path, error), tip=_TIP) from None
    except RecipeError as error:
        raise KvproofError(error.message.replace(" a recipe", " a signature"), tip=_TIP) from None
    if signature.id != path.stem:
        raise KvproofError(f"{path}:{_line(path, ('id',))}: id: it is {signature.id!r}, expected the file's name, "
                           f"{path.stem!r}", tip="make them the same")
    return signature


def _content(path: Path) -> object:
    text = read_text(path)
    # The fast parser keeps the last of two equal keys, and follows aliases.
    keys = _KEYS.findall(text)
    if len(keys) == len(set(keys)) and not _REFERENCES.search(text):
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
            return yaml.load(text, Loader=_FAST)
    return parse(path, text)[1]


def _described(path: Path, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    location = first["loc"]
    dotted = ".".join(map(str, location)) or "file"
    if first["type"] == "extra_forbidden":
        said = f"unknown key; {nearest(str(location[-1]), Signature.model_fields)}"
    elif first["type"] == "missing":
        said = "missing, but every signature needs it"
    else:
        said = first["msg"].removeprefix("Value error, ")
        if not isinstance(first["input"], dict | list | Signature):
            said += f"; seen: {first['input']!r}"
    return f"{path}:{_line(path, location)}: {dotted}: {said}"


def _line(path: Path, location: tuple) -> int:
    return place_of(parse(path, read_text(path))[0], location)[1]
