"""Removes secrets from anything that is shown or kept."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

MASK = "***"

_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL|ACCESS_KEY|PRIVATE_KEY)", re.I)
# Names that match by accident: they count or configure tokens, they do not hold one.
_HARMLESS_NAME = re.compile(r"(TOKENIZERS?(?![A-Z])|(?:MAX|NUM)[_-].*TOKENS|TOKENS[_-]PER)", re.I)
# The folder and what lies in it, not one whose name only begins or ends like it. A slash may stand before it,
# as in file:///home, and a full stop after it.
_WHOLE_PATH = r"(?<![\w.~@+%-]){}(?![\w~@+%-]|\.+\w)"
_SECRET_FLAG = r"--?(?:api-?key|hf-?token|token|password)"
_PATTERNS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{6,}"), "hf_" + MASK),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}"), "sk-" + MASK),
    (re.compile(r"\b(?:ghp|gho|ghs|github_pat)_[A-Za-z0-9_]{16,}"), "gh_" + MASK),
    (re.compile(r"\bnvapi-[A-Za-z0-9_-]{8,}"), "nvapi-" + MASK),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), "AKIA" + MASK),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 " + MASK),
    (re.compile(r"(?i)(://)[^/\s:@]*:[^/\s@]+@"), r"\1" + MASK + "@"),
    (re.compile(rf"(?i)(?<![\w-])({_SECRET_FLAG}[ =])\S+"), r"\1" + MASK),
    (re.compile(r"(?i)\b((?:HF_TOKEN|HUGGING_?FACE_?HUB_TOKEN|[A-Z_]*API_KEY|[A-Z_]*PASSWORD)['\"]?\s*[=:]\s*['\"]?)"
                r"[^\s'\",}]+"), r"\1" + MASK),
)


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name must never be shown or kept."""
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


class Redactor:
    """Masks known secret shapes and the values of this process's secret environment variables.

    Args:
        places: folders of this host to be named by a word, such as the cache folder by $CACHE; what is kept then
            says nothing about the host, and reads the same everywhere. One that is not absolute, or is the root,
            is not searched for: it would rename ordinary words.
        environment: where secret values are looked up; the process's own when None. Values under
            eight characters are not searched for: they would mask ordinary words.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, places: Mapping[str, str] | None = None):
        environment = os.environ if environment is None else environment
        values = {v for k, v in environment.items() if is_secret_name(k) and len(v) >= 8}
        self._values = sorted(values, key=len, reverse=True)
        named = {k: v for k, v in (places or {}).items() if Path(k).is_absolute() and len(Path(k).parts) > 1}
        self._places = [(re.compile(_WHOLE_PATH.format(re.escape(folder))), word)
                        for folder, word in sorted(named.items(), key=lambda place: len(place[0]), reverse=True)]

    def __call__(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, MASK)
        for folder, word in self._places:
            text = folder.sub(lambda _, word=word: word, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def tree(self, value: object) -> object:
        """The same masking in every string of a JSON-like value."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {k: MASK if isinstance(k, str) and isinstance(v, str) and is_secret_name(k) else self.tree(v)
                    for k, v in value.items()}
        if isinstance(value, list | tuple):
            words = [self.tree(v) for v in value]
            for number, word in enumerate(words[:-1]):
                if isinstance(word, str) and re.fullmatch(_SECRET_FLAG, word, re.I):
                    words[number + 1] = MASK
            return words
        return value
