"""What both fake servers share: HTTP with little ceremony, counters, and a gate that holds every answer back.

FAKE_LIE names what the servers lie about; tests/test_lies.py lists the lies. While the file that FAKE_GATE
names exists, no request but the health question is answered.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LIE = os.environ.get("FAKE_LIE", "")
_GATE = Path(os.environ.get("FAKE_GATE") or "/nonexistent")


class Counters:
    """Numbers of a metrics page, by sample name and label text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}

    def add(self, name: str, amount: float = 1, labels: str = "") -> None:
        with self._lock:
            self._values[name, labels] = self._values.get((name, labels), 0) + amount

    def get(self, name: str) -> float:
        with self._lock:
            return sum(v for (n, _), v in self._values.items() if n == name)

    def reset(self) -> None:
        with self._lock:
            self._values = dict.fromkeys(self._values, 0)

    def page(self, hidden: tuple[str, ...] = ()) -> str:
        with self._lock:
            values = sorted(self._values.items())
        lines = []
        for (name, labels), value in values:
            if name.startswith(hidden):
                continue
            lines += [f"# TYPE {name} counter", f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"]
        return "\n".join(lines) + "\n"


class Failure(Exception):
    """An answer with an error status."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status


Routes = dict[str, Callable[[Any], Any]]
"""Path to what answers it: given the JSON body, it returns text, JSON, or an iterator of stream events."""


def server(port: int, routes: Routes) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            path = self.path.partition("?")[0]
            while "health" not in path and _GATE.exists():
                time.sleep(0.02)
            try:
                if path not in routes:
                    raise Failure(404, f"no route {path}")
                found = routes[path](json.loads(body) if body else None)
                if hasattr(found, "__next__"):
                    self._stream(found)
                else:
                    self._answer(200, found)
            except Failure as failure:
                self._answer(failure.status, {"error": {"message": str(failure)}})

        do_POST = do_GET

        def _answer(self, status: int, content: Any) -> None:
            text = content if isinstance(content, str) else "" if content is None else json.dumps(content)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, events: Any) -> None:
            first = next(events)  # before the status line, so that it can still be an error
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in [first, *events, "[DONE]"]:
                data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *words: Any) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

    made = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    made.daemon_threads = True
    return made


def say(text: str) -> None:
    print(text, flush=True)
