"""Servers that run already and were not started here: their addresses, and asking them without trusting them."""

from __future__ import annotations

import math
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .client import EngineClient, Stopwatch
from .connectors import CONNECTORS
from .engines import ENGINES, Engine
from .errors import ServerError, UsageError
from .metrics import Counter, Reading, read_page

ASK_S = 10.0
"""For one question that needs no model."""
_LOOKUP_S = 5.0
# What people paste behind an address.
_ENDPOINTS = re.compile(r"/(v1(/.*)?|metrics|prometheus/metrics|health|healthcheck|status|docs)/?$")
KEY_VARIABLE = "KVPROOF_API_KEY"


class Unreachable(ServerError):
    """Nothing came back that could be read: no connection, no TLS, no complete answer in time."""


class OutOfTime(ServerError):
    """The time for everything is over."""


@dataclass(frozen=True)
class Address:
    """Where a server is.

    Attributes:
        url: for asking; may hold a user and a password, so it is never shown.
        shown: the same without them.
    """

    url: str
    shown: str


def read_address(text: str, option: str) -> Address:
    """An address as a person gives it.

    Args:
        option: what it is called in messages.

    Raises:
        UsageError: it is not one of an HTTP server.
    """
    text = text.strip()
    masked = re.sub(r"[^/@]*@", "***@", text)
    if not text or not text.isprintable() or " " in text:
        raise UsageError(f"{option} is {masked!r}, expected an address such as http://localhost:8000")
    if "://" not in text:
        raise UsageError(f"{option} is {masked!r}, without http:// or https://", tip=f"write http://{masked}")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        httpx.URL(text)
    except (ValueError, httpx.InvalidURL) as error:
        said = "" if "@" in text else f": {error}"
        raise UsageError(f"{option} is {masked!r}, which is no address{said}") from None
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"{option} is {masked!r}, expected http:// or https://",
                         tip="give the address of its HTTP interface, not of its own protocol")
    if not host:
        raise UsageError(f"{option} is {masked!r}, which names no host")
    if parts.query or parts.fragment:
        raise UsageError(f"{option} has something behind its path: {masked.partition('?')[0].partition('#')[0]!r}?…",
                         tip="give the server's address alone")
    bare = f"[{host}]" if ":" in host else host
    place = bare if port is None else f"{bare}:{port}"
    path = _ENDPOINTS.sub("", parts.path).rstrip("/")
    return Address(urlunsplit((parts.scheme, parts.netloc, path, "", "")).rstrip("/"),
                   urlunsplit((parts.scheme, place, path, "", "")).rstrip("/"))


class Deadline:
    """Time for everything together.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def left_s(self, wanted_s: float) -> float:
        """So much of the wanted time as is left.

        Raises:
            OutOfTime: hardly any.
        """
        left = self._end - time.monotonic()
        if left < 0.05:
            raise OutOfTime(f"not done after {self._seconds:g} s", tip="the server is slow now: try fewer --prompts")
        return min(left, wanted_s)


class Remote(EngineClient):
    """A server that was not started here.

    Args:
        deadline: bounds everything that is asked of it.
        key: sent as bearer token; None sends none.
    """

    def __init__(self, name: str, address: Address, deadline: Deadline, key: str | None = None):
        super().__init__(name, address.url, "", Stopwatch(), ASK_S)
        self.address = address
        self.ask_s = ASK_S
        self._deadline = deadline
        if key is not None:
            if not key.isascii() or not key.isprintable():
                raise UsageError(f"{KEY_VARIABLE} holds what no HTTP header can")
            self._client.headers["Authorization"] = f"Bearer {key}"

    def allow(self, seconds: float) -> None:
        """How long the next answer may take."""
        self.timeout_s = self._deadline.left_s(seconds)
        self._client.timeout = httpx.Timeout(self.timeout_s, connect=min(5.0, self.timeout_s))

    def look_up(self) -> None:
        """Find the host's number, in a thread that is left behind when the system takes too long over it.

        Raises:
            Unreachable: it has none, or it takes too long.
        """
        host, found = urlsplit(self.url).hostname or "", []

        def resolve() -> None:
            try:
                found.append(socket.getaddrinfo(host, None))
            except (OSError, UnicodeError) as error:
                found.append(error)

        thread = threading.Thread(target=resolve, daemon=True)
        thread.start()
        thread.join(self._deadline.left_s(_LOOKUP_S))
        if not found:
            raise Unreachable(f"{self.name}: looking up {host} took more than {_LOOKUP_S:g} s", tip="use its number")
        if isinstance(found[0], Exception):
            raise Unreachable(f"{self.name}: no host is called {host}", tip="look at the address")

    def _exchange(self, method: str, path: str, **arguments: Any) -> str:
        self.allow(self.ask_s)
        try:
            return super()._exchange(method, path, **arguments)
        except ServerError as error:
            # What failed below HTTP was another exception first; an answer with an error status was not. There is no
            # run folder here, to which the tips for servers of our own point.
            if error.__context__ is not None:
                raise Unreachable(error.message, tip=self._tip(error.message)) from None
            raise ServerError(error.message, tip=error.tip or self._tip(error.message)) from None

    def _whole(self, method: str, path: str, arguments: dict[str, Any]) -> tuple[httpx.Response, bytes]:
        try:
            response, content = super()._whole(method, path, arguments)
        except (httpx.InvalidURL, ssl.SSLError, UnicodeError, ValueError) as error:
            raise httpx.ConnectError(f"{type(error).__name__}") from error
        if response.is_redirect:
            to = re.sub(r"//[^/@]*@", "//***@", response.headers.get("Location", ""))
            raise ServerError(f"{self.name}: {method} {path} answered HTTP {response.status_code}, a redirect to "
                              f"{to[:200] or 'nowhere'}", tip="give the address that it leads to")
        if response.is_success and "text/html" in response.headers.get("Content-Type", ""):
            raise ServerError(f"{self.name}: {method} {path} answered with a web page",
                              tip="give the address of the engine itself; a proxy or a login stands before it")
        return response, content

    def _tip(self, said: str) -> str:
        tips = {
            "CERTIFICATE_VERIFY_FAILED": "this host does not trust its certificate: use its http:// address, through "
                                         "ssh -L or kubectl port-forward",
            "WRONG_VERSION_NUMBER": "that port speaks plain HTTP: write http://",
            "record layer failure": "that port speaks plain HTTP: write http://",
            "Connection refused": "nothing listens there: look at the server's port, and at -p or --network of its "
                                  "container",
            "reset by peer": "it is no HTTP port, or one that wants https://",
            "disconnected": "it is no HTTP port, or one that wants https://; 5555 is LMCache's own protocol",
            "RemoteProtocolError": "it is no HTTP port, or one that wants https://",
            "no answer to": "the server hangs, or something on the way drops what is sent to that port",
            "HTTP 401": f"it wants a key: set {KEY_VARIABLE}", "HTTP 403": f"it wants another key: set {KEY_VARIABLE}",
        }
        return next((tip for words, tip in tips.items() if words in said), "look at the address and the server's log")


def find_engine(client: Remote) -> tuple[Engine, str]:
    """Which engine answers, by the names on its metrics page, and that page.

    Raises:
        ServerError: none that is known.
    """
    last: ServerError | None = None
    for path in dict.fromkeys(engine.METRICS_PATH for engine in ENGINES.values()):
        try:
            page = client.get_text(path)
        except (Unreachable, OutOfTime):
            raise
        except ServerError as error:
            last = last or error
            continue
        for engine in ENGINES.values():
            if path == engine.METRICS_PATH and names_on(page, engine.COUNTERS.values()):
                return engine, page
        for connector in CONNECTORS.values():
            if connector.COUNTERS and names_on(page, connector.COUNTERS.values()):
                raise ServerError(f"{client.name} is a cache server ({connector.NAME}), not an engine",
                                  tip="give the engine's address, and this one as --cache-server")
        last = ServerError(f"{client.name}: {path} has no metrics of {', '.join(ENGINES)}",
                           tip="give the engine's own address; a router or another program answers there") \
            if path == "/metrics" else last
    assert last is not None
    raise last


def names_on(page: str, counters: Iterable[Counter]) -> bool:
    """Whether a page has anything of the program that these counters belong to; one may show none at first."""
    programs = {found[0] for c in counters if (found := re.match(r"[a-z]+(?::|_mp_|_)", c.name))}
    start = rf"(?m)^(?:# (?:TYPE|HELP) )?(?:{'|'.join(map(re.escape, programs))})"
    return bool(programs) and re.search(start, page) is not None


def read_finite(whose: str, page: str, counters: Iterable[Counter]) -> tuple[Reading, list[str]]:
    """Counters on a page, and the names of those that are there and no numbers (NaN, infinity).

    Args:
        whose: page it is, for messages.

    Raises:
        ServerError: the page is not in Prometheus' format.
    """
    try:
        found = read_page(page, counters)
    except ServerError as error:
        raise ServerError(f"{whose}: {error.message}", tip="something on the way changes the page, or its program is "
                                                           "broken: look at it with curl") from None
    return {k: v for k, v in found.items() if math.isfinite(v)}, [k for k, v in found.items() if not math.isfinite(v)]


def labels_of(page: str, name: str) -> dict[str, str]:
    """Labels of the first sample of that name, as an information metric carries them; empty when there is none."""
    lines = [line for line in page.splitlines() if line.startswith(name)]
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                return dict(sample.labels)
    except (ValueError, KeyError, IndexError):
        pass
    return {}
