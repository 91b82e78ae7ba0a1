"""The HTTP API of image registries: which digest a tag has, and what lies behind it.

Nothing that a registry says is believed unseen: a manifest's digest is the sha256 of its bytes, whatever the header
says. What it asks for as a login is sent to it, or to the token server it names, and never shown.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any
from urllib.parse import urljoin

import httpx

from .errors import CannotRunError, KvproofError, ServerError
from .redact import Redactor
from .references import DIGEST, Login, Logins, Reference, read_logins

INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
IMAGE_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_ACCEPT = ", ".join((*INDEX_TYPES, *IMAGE_TYPES))
_MAX_BYTES = 16 * 1024 * 1024
"""Of a manifest (registries take 4 MiB at most), a configuration or a page of tags."""
_MAX_PAGES = 200
_MAX_WAIT_S = 60.0
_BUSY = frozenset({429, 502, 503, 504})
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Manifest:
    """What a digest stands for.

    Attributes:
        digest: sha256 of its bytes.
        is_index: whether it lists images per platform, instead of being one.
        platforms: digest per platform, such as linux/amd64; of a single image the one that it is for.
        created: when a single image was built; None when it does not say, and for an index.
    """

    digest: str
    is_index: bool
    platforms: dict[str, str]
    created: datetime | None = None


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: httpx.Headers
    body: bytes
    url: str


@dataclass
class Registry:
    """Every registry that is asked, one connection each.

    Attributes:
        logins: of whoever asks; read from Docker's configuration when it is first needed, where None is given.
        timeout_s: longest time for one exchange.
        tries: how often a registry is asked that says it is busy.
        page_size: tags that are asked for at a time.
        wait: how a pause is made, seconds.
    """

    logins: Logins | None = None
    timeout_s: float = 30.0
    tries: int = 4
    page_size: int = 1000
    wait: Callable[[float], object] = time.sleep
    _clients: dict[bool, httpx.Client] = field(default_factory=dict, init=False, repr=False)
    _granted: dict[tuple[str, str], str] = field(default_factory=dict, init=False, repr=False)
    """Authorization header by registry and repository."""
    _lost: dict[str, CannotRunError] = field(default_factory=dict, init=False, repr=False)
    """Registries that do not answer, so that each is waited for once."""

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        for client in self._clients.values():
            client.close()

    def manifest(self, reference: Reference) -> Manifest | None:
        """What a tag or digest stands for; None when there is none.

        Raises:
            ServerError: the answer is no manifest, or not the one that its digest says.
            CannotRunError: the registry cannot be reached, does not answer in time, or wants another login.
        """
        wanted = reference.digest or reference.tag or "latest"
        answer = self._ask("GET", reference, f"manifests/{wanted}")
        if answer is None:
            return None
        digest = _verified(answer, reference, reference.digest, answer.headers.get("docker-content-digest"))
        content = _json(answer, reference)
        kind = content.get("mediaType") or answer.headers.get("content-type", "").partition(";")[0]
        if kind in INDEX_TYPES:
            return Manifest(digest, True, _platforms(content, reference))
        config = (content.get("config") or {}).get("digest")
        if kind not in IMAGE_TYPES or not DIGEST.fullmatch(str(config)):
            raise ServerError(f"{reference}: {reference.host} answered with {kind or 'something unnamed'}, expected an "
                              "image or an index", tip="an image of before 2016 must be pushed anew")
        platform, created = self._configuration(reference, config)
        return Manifest(digest, False, {platform: digest}, created)

    def digest(self, reference: Reference) -> str | None:
        """The digest of a tag, or a digest itself when it is there; None when it is not. Costs no pull where registries
        count them."""
        answer = self._ask("HEAD", reference, f"manifests/{reference.digest or reference.tag or 'latest'}")
        if answer is None:
            return None
        said = answer.headers.get("docker-content-digest", "")
        if not DIGEST.fullmatch(said):
            found = self.manifest(reference)
            return found.digest if found else None
        if reference.digest and said != reference.digest:
            raise _wrong_digest(reference, said, reference.digest)
        return said

    def tags(self, reference: Reference) -> list[str]:
        """Every tag of a repository, sorted; empty when there is no such repository."""
        found, path, seen = set(), f"tags/list?n={self.page_size}", set()
        while path:
            if path in seen or len(seen) >= _MAX_PAGES:
                raise ServerError(f"{reference.host}: the list of tags of {reference.path} does not end")
            seen.add(path)
            answer = self._ask("GET", reference, path)
            if answer is None:
                break
            names = _json(answer, reference).get("tags") or []
            if not isinstance(names, list):
                raise ServerError(f"{reference.host}: the list of tags of {reference.path} is no list")
            found.update(map(str, names))
            path = _next_page(answer, reference)
        return sorted(found)

    def _configuration(self, reference: Reference, config: str) -> tuple[str, datetime | None]:
        """Platform of a single image, and when it was built.

        Args:
            config: its configuration's digest.
        """
        answer = self._ask("GET", reference, f"blobs/{config}")
        if answer is None:
            raise ServerError(f"{reference}: {reference.host} has the manifest and not its configuration {config}",
                              tip="push the image anew")
        _verified(answer, reference, config, None)
        content = _json(answer, reference)
        return _platform(content), _time(content.get("created"))

    def _ask(self, method: str, reference: Reference, path: str) -> _Answer | None:
        """An answer of the repository, logged in as far as it wants; None when there is no such thing."""
        url = path if path.startswith("/") else f"/v2/{reference.path}/{path}"
        key = (reference.host, reference.path)
        answer = self._patiently(method, reference, reference.url + url, self._granted.get(key))
        if answer.status == 401:
            self._granted[key] = self._authorization(reference, answer)
            answer = self._patiently(method, reference, reference.url + url, self._granted[key])
        if answer.status == 404:
            return None
        if answer.status in (401, 403):
            raise CannotRunError(
                f"{reference.host} does not show {reference.path} "
                f"(HTTP {answer.status}{_said(answer)}): there is no such repository, or it wants another login",
                tip=f"check the name; {self._logins().hint(reference.host)}")
        if answer.status != 200:
            raise ServerError(f"{reference.host}: {method} {url} answered HTTP {answer.status}{_said(answer)}",
                              tip="see whether this is a registry, and whether a proxy answers for it")
        return answer

    def _patiently(self, method: str, reference: Reference, url: str, authorization: str | None) -> _Answer:
        """Asks again while the registry says that it is busy."""
        for attempt in range(1, self.tries + 1):
            answer = self._exchange(method, reference, url, authorization)
            if answer.status not in _BUSY:
                return answer
            asked_s = _retry_after(answer.headers.get("retry-after"))
            pause_s = 2.0 ** (attempt - 1) if asked_s is None else asked_s
            if attempt == self.tries or pause_s > _MAX_WAIT_S:
                break
            self.wait(pause_s)
        wish = "" if asked_s is None else f" and asks to wait {asked_s:.0f} s"
        raise CannotRunError(
            f"{reference.host} is busy: it answered HTTP {answer.status} {attempt} times{wish}{_said(answer)}",
            tip="try again later; registries allow more to who is logged in: " + self._logins().hint(reference.host))

    def _exchange(self, method: str, reference: Reference, url: str, authorization: str | None = None,
                  parameters: dict[str, str] | None = None) -> _Answer:
        """One question; the time limit is for all of the answer, not for each piece."""
        headers = {"Accept": f"{_ACCEPT}, */*;q=0.1"} | ({"Authorization": authorization} if authorization else {})
        deadline, body = time.monotonic() + self.timeout_s, bytearray()
        host = httpx.URL(url).netloc.decode()
        if host in self._lost:
            raise self._lost[host]
        try:
            with self._client(reference).stream(method, url, headers=headers, params=parameters) as response:
                for piece in response.iter_bytes():
                    body += piece
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("")
                    if len(body) > _MAX_BYTES:
                        raise ServerError(f"{host}: {method} answered more than {_MAX_BYTES} bytes")
                return _Answer(response.status_code, response.headers, bytes(body), str(response.url))
        except httpx.TimeoutException:
            lost = CannotRunError(f"{host} did not answer {method} within {self.timeout_s:g} s",
                                  tip="the registry hangs or is out of reach: see the network, then try again")
        except httpx.HTTPError as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            lost = CannotRunError(f"{host} cannot be asked: {Redactor()(reason)}",
                                  tip="check the name, the network and, if there is one, the proxy")
        self._lost[host] = lost
        raise lost

    def _client(self, reference: Reference) -> httpx.Client:
        """A client per kind of registry: no proxy stands before one on this machine."""
        own = reference.is_loopback
        if own not in self._clients:
            self._clients[own] = httpx.Client(
                timeout=httpx.Timeout(self.timeout_s, connect=min(10.0, self.timeout_s)), trust_env=not own,
                follow_redirects=True, max_redirects=5,
                event_hooks={"request": [] if own else [_refuse_unencrypted]})
        return self._clients[own]

    def _logins(self) -> Logins:
        if self.logins is None:
            self.logins = read_logins()
        return self.logins

    def _authorization(self, reference: Reference, answer: _Answer) -> str:
        """The header that the registry asks for."""
        login = self._logins().of(reference.host)
        challenges = answer.headers.get_list("www-authenticate")
        bearer = next((c for c in challenges if c.lower().startswith("bearer ")), None)
        if bearer is not None:
            return f"Bearer {self._token(reference, dict(_CHALLENGE.findall(bearer)), login)}"
        if any(c.lower().startswith("basic") for c in challenges):
            if login is None:
                raise CannotRunError(f"{reference.host} wants user and password for {reference.path}",
                                     tip=self._logins().hint(reference.host))
            return _basic(login)
        raise ServerError(f"{reference.host} refuses (HTTP 401) without saying which login it wants",
                          tip="see whether this is a registry, and whether a proxy answers for it")

    def _token(self, reference: Reference, challenge: dict[str, str], login: Login | None) -> str:
        realm = challenge.get("realm", "")
        loopback = reference.is_loopback and re.match(r"http://(localhost|127\.0\.0\.1|\[::1\])[:/]", realm)
        if not realm.startswith("https://") and not loopback:
            raise ServerError(f"{reference.host} names {realm!r} for its tokens, expected an https address",
                              tip="do not log in there; see whether a proxy answers for the registry")
        wanted = {"scope": challenge.get("scope") or f"repository:{reference.path}:pull"}
        if challenge.get("service"):
            wanted["service"] = challenge["service"]
        answer = self._exchange("GET", reference, realm, _basic(login) if login else None, wanted)
        if answer.status != 200:
            who = f"the login of {login.user}" if login else "an anonymous request"
            raise CannotRunError(f"{httpx.URL(realm).host} refused {who} for {reference.path} (HTTP {answer.status})",
                                 tip=self._logins().hint(reference.host))
        content = _json(answer, reference)
        token = content.get("token") or content.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ServerError(f"{httpx.URL(realm).host} answered without a token")
        return token


def _verified(answer: _Answer, reference: Reference, wanted: str | None, said: str | None) -> str:
    """The digest of the bytes, which must be the one asked for and the one that the registry says."""
    found = "sha256:" + hashlib.sha256(answer.body).hexdigest()
    for expected in (wanted, said):
        if expected and expected.startswith("sha256:") and expected != found:
            raise _wrong_digest(reference, found, expected)
    return found


def _wrong_digest(reference: Reference, seen: str, expected: str) -> KvproofError:
    return ServerError(f"{reference}: {reference.host} sent {seen}, expected {expected}: what it sent is not what it "
                       "says", tip="do not use it; ask the registry directly, without a proxy or mirror between")


def _json(answer: _Answer, reference: Reference) -> dict[str, Any]:
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        kind = answer.headers.get("content-type", "no content type").partition(";")[0]
        raise ServerError(f"{reference.host} answered with {kind}, expected JSON; it begins: "
                          f"{Redactor()(answer.body[:60].decode(errors='replace'))!r}",
                          tip="this is a page of a proxy or of a web site, not of a registry")
    return content


def _platforms(content: dict[str, Any], reference: Reference) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        for entry in content["manifests"]:
            name = _platform(entry.get("platform") or {})
            # What is attached to an image, such as its provenance, stands beside it as unknown/unknown.
            if not name.startswith("unknown") and DIGEST.fullmatch(entry["digest"]):
                found.setdefault(name, entry["digest"])
    except (KeyError, TypeError, AttributeError):
        raise ServerError(f"{reference}: the index of {reference.host} cannot be read") from None
    return found


def _platform(content: dict[str, Any]) -> str:
    parts = [content.get("os") or "unknown", content.get("architecture") or "unknown"]
    # Every arm64 is v8; naming it would make two names of one platform.
    if content.get("variant") and (parts[1], content["variant"]) != ("arm64", "v8"):
        parts.append(content["variant"])
    return "/".join(map(str, parts))


def _time(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", str(text)))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)


def _next_page(answer: _Answer, reference: Reference) -> str | None:
    link = re.fullmatch(r'\s*<([^>]*)>\s*;\s*rel="?next"?.*', answer.headers.get("link", ""))
    if link is None:
        return None
    url = httpx.URL(urljoin(answer.url, link[1]))
    if url.host != httpx.URL(reference.url).host:
        raise ServerError(f"{reference.host}: the list of tags goes on at {url.host}, expected the same registry")
    return url.raw_path.decode()


def _retry_after(text: str | None) -> float | None:
    """Seconds to wait, from a number or a date; None when neither is given."""
    if not text:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _said(answer: _Answer) -> str:
    """What a registry's error says, as a part of a sentence."""
    try:
        first = json.loads(answer.body)["errors"][0]
        text = " ".join(str(first.get("message") or first.get("code") or "").split())
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return ""
    return f": {Redactor()(text[:200])}" if text else ""


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _refuse_unencrypted(request: httpx.Request) -> None:
    if request.url.scheme != "https":
        raise httpx.UnsupportedProtocol(f"{request.url.host} would be asked without encryption")
