"""Words of a plan for the languages that exports are written in.

A plan is composed with symbols where a user decides: `@RUN_DIR@` is a folder, and a port is a number that no real
port has. They become variables of the language; all else is quoted so that it stays what the plan says.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence

RUN_DIR, KVPROOF_HOME, HOST, BIN = "@RUN_DIR@", "@KVPROOF_HOME@", "@HOST@", "@BIN@"
_PYTHON = f"{BIN}/python"
_FIRST = 9_000_000_000
PORTS = {"engine": _FIRST, "cache": _FIRST + 1, "cache_http": _FIRST + 2}
"""By the layout's names."""
NUMBERS = {"engine": 8000, "cache": 5555, "cache_http": 8080}
VARIABLES = {"engine": "PORT", "cache": "CACHE_PORT", "cache_http": "CACHE_HTTP_PORT"}
_TEXTS = {_PYTHON: "PYTHON"} | {symbol: symbol.strip("@") for symbol in (RUN_DIR, KVPROOF_HOME, HOST, BIN)}
_NAMES = _TEXTS | {str(number): VARIABLES[name] for name, number in PORTS.items()}
_DEFAULTS = {VARIABLES[name]: str(number) for name, number in NUMBERS.items()} | {"HOST": "127.0.0.1"}
# The longer symbol first; digits before or after make another number.
_SYMBOL = re.compile("|".join([*_TEXTS, rf"(?<!\d)(?:{'|'.join(map(str, PORTS.values()))})(?!\d)"]))
_SAFE_IN_DOUBLE_QUOTES = re.compile(r'[^"$`\\!]*')
_PLAIN = re.compile(r"[A-Za-z0-9@%+=:,./_-]+")


def _pieces(text: str) -> list[tuple[str, str]]:
    """Literal text and the name of the variable after it, in turn; the last name is empty."""
    pieces, at = [], 0
    for found in _SYMBOL.finditer(text):
        pieces.append((text[at:found.start()], _NAMES[found[0]]))
        at = found.end()
    return [*pieces, (text[at:], "")]


def variables(texts: Iterable[str]) -> set[str]:
    """Names of the variables that stand in the texts."""
    return {name for text in texts for _, name in _pieces(text) if name}


def bash(text: str) -> str:
    """One word of a command."""
    pieces = _pieces(text)
    if len(pieces) == 1:
        return text if _PLAIN.fullmatch(text) else shlex.quote(text)
    if all(_SAFE_IN_DOUBLE_QUOTES.fullmatch(literal) for literal, _ in pieces):
        following = [literal for literal, _ in pieces[1:]]
        return '"' + "".join(literal + _reference(name, after) for (literal, name), after
                             in zip(pieces, [*following, ""], strict=True)) + '"'
    return "".join((shlex.quote(literal) if literal else "") + (f'"${name}"' if name else "")
                   for literal, name in pieces)


def _reference(name: str, after: str) -> str:
    if not name:
        return ""
    return f"${{{name}}}" if re.match(r"\w", after) else f"${name}"


def lines(words: Sequence[str], indent: int = 4) -> str:
    """Words of a command, a flag and its values on each line."""
    groups: list[list[str]] = []
    for word in words:
        if not groups or (word.startswith("--") and word != "--"):
            groups.append([])
        groups[-1].append(bash(word))
    return (" \\\n" + " " * indent).join(" ".join(group) for group in groups)


def heredoc(text: str) -> str:
    """The inside of a here-document whose delimiter is not quoted, with one newline at its end."""
    inside = "".join(re.sub(r"([\\$`])", r"\\\1", literal) + _reference(name, "_" if name else "")
                     for literal, name in _pieces(text))
    return inside.rstrip("\n")


def plain(text: str) -> str:
    """For people to read: every variable by its default."""
    return "".join(literal + _DEFAULTS.get(name, name) for literal, name in _pieces(text))


def _in_compose(text: str) -> str:
    """$ begins a variable in a compose file."""
    return "".join(literal.replace("$", "$$") + (f"${{{name}:-{_DEFAULTS[name]}}}" if name else "")
                   for literal, name in _pieces(text))


def _in_k8s(text: str) -> str:
    """$(NAME) is a variable in a container's command and environment, and $$ is a $."""
    return re.sub(r"\$(?=[($])", "$$", text)


def compose(text: str, indent: int = 0) -> str:
    """A scalar of a compose file."""
    return yaml(_in_compose(text), indent)


def k8s(text: str, indent: int = 0) -> str:
    """A word of a command or environment in a manifest."""
    return yaml(_in_k8s(text), indent)


def yaml(text: str, indent: int = 0) -> str:
    """A scalar: lines of text as a block with so many spaces before each, all else in double quotes.

    Args:
        indent: 0 for a place where no block can stand.
    """
    if indent and "\n" in text and not re.search(r"[^ -~\n]|\A[ \n]|\n\n\Z", text):
        inside = "\n".join(" " * indent + line if line else "" for line in text.rstrip("\n").split("\n"))
        return ("|" if text.endswith("\n") else "|-") + "\n" + inside
    escaped = json.dumps(text, ensure_ascii=False)
    # Line breaks and controls of YAML that JSON lets stand.
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff]", lambda found: f"\\u{ord(found[0]):04x}", escaped)


def comment(text: str) -> str:
    """A text as one line, so that nothing of it can leave a comment."""
    return " ".join(text.split())
