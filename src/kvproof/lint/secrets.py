"""Secrets in a paste: where they are, and a text without them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..redact import MASK, Redactor, is_secret_name

_SHAPES = (
    (re.compile(r"\bhf_[A-Za-z0-9]{6,}"), "a Hugging Face token", "hf_" + MASK, "HF_TOKEN"),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}"), "an API key", "sk-" + MASK, "API_KEY"),
    (re.compile(r"\b(?:ghp|gho|ghs|github_pat)_[A-Za-z0-9_]{16,}"), "a GitHub token", "gh_" + MASK, "GITHUB_TOKEN"),
    (re.compile(r"\bnvapi-[A-Za-z0-9_-]{8,}"), "an NVIDIA API key", "nvapi-" + MASK, "NGC_API_KEY"),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), "an AWS access key", "AKIA" + MASK, "AWS_ACCESS_KEY_ID"),
    (re.compile(r"(?i)(?:bearer|basic)\s+([A-Za-z0-9._~+/=-]{8,})"), "an authorization header", MASK, "TOKEN"),
    (re.compile(r"://([^/\s:@'\"]*:[^/\s@'\"]+)@"), "an address with a password", MASK, "CREDENTIALS"),
    (re.compile(r"(?i)(?<![\w-])--?(?:api-?key|hf-?token|token|password)[ =]['\"]?([^\s'\"]+)"), "a secret", MASK,
     "TOKEN"),
)
_NAMED = re.compile(r"(?<![\w.])([A-Za-z_][A-Za-z0-9_]{2,60})['\"]?\s*[=:]\s*['\"]?([^\s'\",}]+)")
_IN_LIST = re.compile(r"name['\"]?:\s*['\"]?([A-Za-z_][A-Za-z0-9_]{2,60})['\"]?\s*,?\s*\n?\s*['\"]?value['\"]?:\s*"
                      r"['\"]?([^\s'\",}]+)")
_REFERENCE = re.compile(r"[$<{%*&]|\.\.\.|x{3,}|your|my[-_]|change[-_]?me|replace|secret|example|dummy|placeholder|"
                        r"redacted|token|passw|none$|null$|empty|true$|false$|todo|insert|abc123|fake|test", re.I)
_HELD = re.compile(r"((?:[A-Za-z_][A-Za-z0-9_]*['\"]?\s*[=:]|--?[A-Za-z-]+[ =])\s*['\"]?)"
                   r"(\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|<[^<>\n]{1,60}>|\$\{\{[^\n]{1,80}?\}\}|\{\{[^\n]{1,80}?\}\})(?![\w-])")
"""References and placeholders behind a name, which the redactor would mask with the name's own values."""


@dataclass(frozen=True)
class Secret:
    """Attributes:
        start, end: of the secret itself.
        what: as a sentence part.
        masked: how it is shown.
        name: of a variable that could hold it.
    """

    start: int
    end: int
    what: str
    masked: str
    name: str


def find(text: str) -> list[Secret]:
    """The secrets in a text, in order; references and placeholders are none."""
    found: list[Secret] = []
    for secret in sorted(_candidates(text), key=lambda s: (s.start, -s.end)):
        if not found or secret.start >= found[-1].end:
            found.append(secret)
    return found


def _candidates(text: str) -> Iterator[Secret]:
    for pattern, what, masked, name in _SHAPES:
        for match in pattern.finditer(text):
            group = 1 if pattern.groups else 0
            if not _is_placeholder(match[group], shaped=not pattern.groups):
                yield Secret(*match.span(group), what, masked, name)
    for pattern in (_NAMED, _IN_LIST):
        for match in pattern.finditer(text):
            name, value = match[1], match[2]
            if is_secret_name(name) and len(value) >= 6 and not _is_placeholder(value) and not _is_name_of(name, value):
                yield Secret(*match.span(2), f"the value of {name}", MASK, name.upper())


def _is_placeholder(value: str, *, shaped: bool = False) -> bool:
    """Whether a value stands for a secret and is none.

    Args:
        shaped: whether it has the shape of a real one, so that words within it mean nothing.
    """
    body = value.split("_", 1)[-1] if shaped and "_" in value else value.split("-", 1)[-1] if shaped else value
    if shaped:
        return len(set(body.lower())) <= 2 or bool(re.search(r"x{4,}|your|token|\.\.\.", body, re.I))
    return bool(_REFERENCE.search(value)) or len(set(value.lower())) <= 2


def _is_name_of(name: str, value: str) -> bool:
    """Whether a key such as secretName holds the name of a secret."""
    return bool(re.search(r"name|ref|file|path|key$", name, re.I) and not re.search(
        r"api_?key$|access_?key$|private_?key$", name, re.I)) or value.startswith(("/", "sha256:"))


def scrub(text: str) -> str:
    """A text with a reference in the place of each secret, and nothing left that looks like one."""
    parts, at = [], 0
    for secret in find(text):
        parts += [text[at:secret.start], f"${secret.name}"]
        at = secret.end
    text = "".join([*parts, text[at:]])
    held: list[str] = []

    def hold(match: re.Match) -> str:
        held.append(match[0])
        return f"\x00{len(held) - 1}\x00"

    text = _HELD.sub(hold, text.replace("\x00", ""))
    text = Redactor()(text)
    return re.sub("\x00(\\d+)\x00", lambda m: held[int(m[1])], text)
