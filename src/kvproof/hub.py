"""The model hub: whether the models that a recipe loads can be had from here, and what time it is there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from .preflight import Finding
from .recipe import Checkpoint, Recipe

TIMEOUT_S = 3.0
"""For one question; a host that hangs is as good as none."""
_MAX_SKEW_S = 60
_YES = {"1", "on", "yes", "true"}
_AIR_GAPPED = "docs/guides/air-gapped.md says how to bring it here"


class _NoAnswer(Exception):
    """The hub cannot be asked; the text says why."""


def models_of(recipe: Recipe) -> list[Checkpoint]:
    """Checkpoints that the engine loads from the hub; empty when all are kept or made here."""
    named = [recipe.model, *([recipe.speculative.assistant] if recipe.speculative else [])]
    return [m for m in named if m.folder is None and m.build is None]


def model_findings(models: list[Checkpoint]) -> list[Finding]:
    """The token, and each model: here already, or to be had with that token."""
    missing = [m for m in models if not _is_cached(m)]
    here = [Finding(f"model {m.repository}", "ok", f"revision {m.revision[:12]} is in the hub's cache on this host")
            for m in models if m not in missing]
    if not missing:
        return here
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _YES:
        return [*here, *_out_of_reach(missing, "HF_HUB_OFFLINE is set")]
    try:
        with _client() as client:
            account = _account(client)
            asked = [_model(client, m, account) for m in missing]
    except _NoAnswer as reason:
        return [Finding("HF token", "unknown", f"not asked: {reason}"), *here, *_out_of_reach(missing, str(reason))]
    refused = any("(401)" in f.seen for f in asked)
    return [_token_finding(account, refused), *here, *asked]


def _out_of_reach(models: list[Checkpoint], why: str) -> list[Finding]:
    return [Finding(f"model {m.repository}", "missing", f"not in the hub's cache on this host, and offline: {why}",
                    _AIR_GAPPED) for m in models]


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _host() -> str:
    """The hub's name for people: an address may hold a password."""
    return urlsplit(endpoint()).hostname or "the hub"


def _token() -> str | None:
    """As huggingface_hub finds it: in the environment, then in its own file."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name, "").strip():
            return os.environ[name].strip()
    try:
        return Path(os.environ.get("HF_TOKEN_PATH") or _home() / "token").read_text().strip() or None
    except (OSError, ValueError):
        return None


def _home() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or Path(caches) / "huggingface").expanduser()


def _is_cached(model: Checkpoint) -> bool:
    """Whether all weights of that revision lie in the hub's cache."""
    cache = Path(os.environ.get("HF_HUB_CACHE") or _home() / "hub").expanduser()
    folder = cache / f"models--{model.repository.replace('/', '--')}" / "snapshots" / model.revision
    try:
        index = folder / "model.safetensors.index.json"
        files = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
        return all((folder / name).exists() for name in {"config.json", *files})
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


@contextmanager
def _client() -> Iterator[httpx.Client]:
    """A client that sends no token by itself and follows no redirect, so that a token stays with the hub."""
    try:
        with httpx.Client(timeout=TIMEOUT_S) as client:
            yield client
    except httpx.HTTPError as error:
        raise _NoAnswer(f"{_host()} cannot be reached ({type(error).__name__})") from None
    except (httpx.InvalidURL, ImportError, ValueError) as error:  # also a proxy setting that httpx cannot use
        raise _NoAnswer(f"{_host()} cannot be asked: {error}; look at HF_ENDPOINT and the proxy settings") from None


def _get(client: httpx.Client, path: str) -> httpx.Response:
    token = _token()
    return client.get(endpoint() + path, headers={"Authorization": f"Bearer {token}"} if token else {})


def _account(client: httpx.Client) -> int | str | None:
    """Name of the token's account; the HTTP status when it is not told; None without a token."""
    if _token() is None:
        return None
    answer = _get(client, "/api/whoami-v2")
    name = _json(answer).get("name")
    return name if answer.is_success and isinstance(name, str) else answer.status_code


def _token_finding(account: int | str | None, refused: bool) -> Finding:
    name, get = "HF token", f"set HF_TOKEN to one from {endpoint()}/settings/tokens"
    if account is None and refused:
        return Finding(name, "missing", "none is set, and the hub wants one (401)", get)
    if account is None:
        return Finding(name, "ok", "none is set, and none is needed")
    if account == 401:
        return Finding(name, "missing" if refused else "warning", "the one that is set is not valid (401)", get)
    if isinstance(account, int):
        return Finding(name, "unknown", f"{_host()} answered HTTP {account} when asked whose it is", "try again later")
    return Finding(name, "ok", f"of account {account}")


def _model(client: httpx.Client, model: Checkpoint, account: int | str | None) -> Finding:
    """What the hub says of one model: its page tells whether it exists, and when it is gated, who may have it."""
    page = _get(client, f"/api/models/{model.repository}/revision/{model.revision}")
    answer = page
    if page.is_success and _json(page).get("gated"):
        answer = _get(client, f"/api/models/{model.repository}/auth-check")
    name, status = f"model {model.repository}", answer.status_code
    if answer.is_success:
        return Finding(name, "ok", f"{_host()} gives revision {model.revision[:12]} to " + (
            f"account {account}" if isinstance(account, str) else "everybody"))
    if status == 401:
        return Finding(name, "missing", "the hub wants a valid token (401), or has no such model",
                       f"set HF_TOKEN, and accept the licence at {endpoint()}/{model.repository}")
    if status == 403:
        who = f"account {account}" if isinstance(account, str) else "the token's account"
        return Finding(name, "missing", f"{who} has not accepted the licence, or its token may not read gated models "
                                        "(403)", f"accept it at {endpoint()}/{model.repository}")
    if status == 404:
        return Finding(name, "missing", f"{_host()} has no revision {model.revision} of it (404)",
                       "look at model.repository and model.revision in the recipe")
    return Finding(name, "unknown", f"{_host()} answered HTTP {status}", "try again later")


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def clock_finding(evidence: Path) -> Finding:
    """This host's clock against the hub's; without a network only whether it is behind the newest evidence."""
    try:
        if os.environ.get("HF_HUB_OFFLINE", "").lower() in _YES:
            raise _NoAnswer("HF_HUB_OFFLINE is set")
        with _client() as client:
            told = client.head(endpoint() + "/").headers.get("Date", "")
            now = datetime.now(UTC)
            there = _time(told)
    except _NoAnswer as reason:
        return _against_evidence(evidence, str(reason))
    if there is None:
        return _against_evidence(evidence, f"{_host()} does not say what time it is")
    skew_s = (now - there).total_seconds()
    way = "ahead of" if skew_s > 0 else "behind"
    if abs(skew_s) > _MAX_SKEW_S:
        return Finding("clock", "warning", f"{abs(skew_s):.0f} s {way} {_host()}",
                       "set it (timedatectl set-ntp true): certificates and tokens are refused by a wrong one")
    return Finding("clock", "ok", f"within {max(1, abs(skew_s)):.0f} s of {_host()}")


def _time(header: str) -> datetime | None:
    try:
        return parsedate_to_datetime(header).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def _against_evidence(evidence: Path, why: str) -> Finding:
    """Evidence files are named by the time at which their run began."""
    stamps = [found[0] for path in evidence.glob("*/*.json") if (found := re.match(r"\d{8}T\d{6}Z", path.name))]
    try:
        newest = datetime.strptime(max(stamps, default=""), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return Finding("clock", "unknown", why)
    now = datetime.now(UTC)
    if now < newest - timedelta(seconds=_MAX_SKEW_S):
        return Finding("clock", "warning", f"it says {now:%Y-%m-%d %H:%M} UTC, and evidence here is from "
                                           f"{newest:%Y-%m-%d %H:%M}", "set it (timedatectl set-ntp true)")
    return Finding("clock", "unknown", f"{why}; it is not behind the newest evidence ({newest:%Y-%m-%d %H:%M} UTC)")
