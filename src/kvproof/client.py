"""HTTP to an engine or a cache server, with a time limit on everything."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from .errors import ServerError

MAX_ANSWER_BYTES = 64 * 1024 * 1024


class Stopwatch:
    """Adds up the time spent waiting for processes and responses, in seconds."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._depth = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self._depth += 1
        started = time.monotonic()
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.waited_s += time.monotonic() - started


@dataclass(frozen=True)
class Completion:
    """Answer to one completion request.

    Attributes:
        token_ids: generated token ids; -1 for each that the engine did not give.
        logprobs: log-probability of each, nats; None where the engine gave none, NaN or infinity.
        cached_tokens: prompt tokens the engine did not compute; None when usage does not say.
        ttft_s: from sending the request to the first token; None when none came.
        error: HTTP status and message, or what went wrong in the stream; None when all went well.
        timed_out: the error is that the answer did not come in time.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    prompt_tokens: int | None
    cached_tokens: int | None
    ttft_s: float | None
    duration_s: float
    error: str | None = None
    timed_out: bool = False


class Http:
    """A server at one address.

    Args:
        name: what the server is called in messages.
        url: address without a trailing slash.
        timeout_s: longest time for a whole exchange, streaming included.
    """

    def __init__(self, name: str, url: str, stopwatch: Stopwatch, timeout_s: float = 120.0):
        self.name = name
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._stopwatch = stopwatch
        self._client = httpx.Client(
            base_url=self.url, timeout=httpx.Timeout(timeout_s, connect=5.0), trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=4),
        )

    def close(self) -> None:
        self._client.close()

    def _exchange(self, method: str, path: str, **arguments: Any) -> str:
        try:
            with self._stopwatch.waiting():
                response, content = self._whole(method, path, arguments)
        except (httpx.TimeoutException, _TooLong):
            raise ServerError(f"{self.name}: no answer to {method} {path} within {self.timeout_s:g} s",
                              tip="the server hangs; its log is in the run folder") from None
        except httpx.HTTPError as error:
            raise ServerError(f"{self.name}: {method} {path} failed: {_reason(error)}",
                              tip="the server is gone or unreachable; its log is in the run folder") from None
        text = content.decode("utf-8", errors="replace")
        if response.is_error:
            raise ServerError(f"{self.name}: {method} {path} answered HTTP {response.status_code}: {text[:300]}")
        return text

    def _whole(self, method: str, path: str, arguments: dict[str, Any]) -> tuple[httpx.Response, bytes]:
        """A response with its body; the time limit is for all of it, not for each piece."""
        deadline = time.monotonic() + self.timeout_s
        content = bytearray()
        with self._client.stream(method, path, **arguments) as response:
            for piece in response.iter_bytes():
                content += piece
                if time.monotonic() > deadline:
                    raise _TooLong
                if len(content) > MAX_ANSWER_BYTES:
                    raise ServerError(f"{self.name}: {method} {path} answered more than {MAX_ANSWER_BYTES} bytes")
        return response, bytes(content)

    def get_text(self, path: str) -> str:
        return self._exchange("GET", path)

    def get_json(self, path: str) -> Any:
        return _json(self._exchange("GET", path), f"{self.name}: GET {path}")

    def post_json(self, path: str, body: Any = None) -> Any:
        text = self._exchange("POST", path, json=body)
        return _json(text, f"{self.name}: POST {path}") if text else None

    def is_healthy(self, path: str) -> bool:
        """One short question; any failure means no."""
        try:
            with self._stopwatch.waiting():
                return self._client.get(path, timeout=2.0).is_success
        except httpx.HTTPError:
            return False


class EngineClient(Http):
    """An engine with the OpenAI completions API.

    Args:
        model: served model name.
    """

    def __init__(self, name: str, url: str, model: str, stopwatch: Stopwatch, timeout_s: float = 120.0):
        super().__init__(name, url, stopwatch, timeout_s)
        self.model = model

    def complete(self, prompt: list[int] | str, *, max_tokens: int, salt: str | None = None,
                 stop: tuple[str, ...] = ()) -> Completion:
        """Greedy completion, streamed.

        Args:
            salt: keeps this request's KV apart from requests with another salt, in the engine's own cache
                and in the connector's (vLLM cache_salt); None shares it with all unsalted ones.
            stop: texts that end the answer.
        """
        body: dict[str, Any] = {
            "model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 0,
            "logprobs": 1, "stream": True, "stream_options": {"include_usage": True},
            # Two ways to ask for ids: SGLang has only the first, older versions of vLLM only the second.
            "return_token_ids": True, "return_tokens_as_token_ids": True,
        }
        if salt is not None:
            body["cache_salt"] = salt
        if stop:
            body["stop"] = list(stop)
        collected = _Collected()
        started = time.monotonic()
        error, timed_out = None, False
        try:
            with self._stopwatch.waiting():
                self._stream(body, collected, started)
        except (httpx.TimeoutException, _TooLong):
            error, timed_out = f"no complete answer within {self.timeout_s:g} s", True
        except httpx.HTTPError as failure:
            error = _reason(failure)
        except _Failed as failure:
            error = str(failure)
        return Completion(
            text="".join(collected.text), token_ids=tuple(collected.ids), logprobs=tuple(collected.logprobs),
            prompt_tokens=collected.prompt_tokens, cached_tokens=collected.cached_tokens,
            ttft_s=collected.ttft_s, duration_s=time.monotonic() - started, error=error,
            timed_out=timed_out,
        )

    def _stream(self, body: dict, collected: _Collected, started: float) -> None:
        with self._client.stream("POST", "/v1/completions", json=body) as response:
            if response.is_error:
                response.read()
                raise _Failed(f"HTTP {response.status_code}: {response.text[:300]}")
            for line in self._lines(response, started):
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                collected.add(data, started)
        raise _Failed("the answer ended before its end mark")

    def _lines(self, response: httpx.Response, started: float) -> Iterator[str]:
        """Lines of a stream as they come, within the time limit even when a line never ends."""
        rest, size = b"", 0
        for piece in response.iter_bytes():
            size += len(piece)
            if time.monotonic() - started > self.timeout_s:
                raise _TooLong
            if size > MAX_ANSWER_BYTES:
                raise _Failed(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", errors="replace")

    def chat(self, text: str, *, max_tokens: int) -> str:
        """One chat turn; the generated text.

        Raises:
            ServerError: an error status, a hang, or no text field.
        """
        answer = self.post_json("/v1/chat/completions", {
            "model": self.model, "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens, "temperature": 0,
        })
        try:
            return str(answer["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError):
            raise ServerError(f"{self.name}: chat answer has no choices[0].message.content") from None

    def models(self) -> list[str]:
        answer = self.get_json("/v1/models")
        try:
            return [str(m["id"]) for m in answer["data"]]
        except (KeyError, TypeError):
            raise ServerError(f"{self.name}: /v1/models has no list of ids") from None


class _Failed(Exception):
    pass


class _TooLong(Exception):
    pass


class _Collected:
    def __init__(self) -> None:
        self.text: list[str] = []
        self.ids: list[int] = []
        self.logprobs: list[float | None] = []
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.ttft_s: float | None = None

    def add(self, data: str, started: float) -> None:
        try:
            self._add(json.loads(data), started)
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise _Failed(f"the stream holds something that is no completion: {data[:100]!r}") from None

    def _add(self, event: dict[str, Any], started: float) -> None:
        if event.get("error"):
            raise _Failed(f"error in the stream: {str(event['error'])[:300]}")
        for choice in event.get("choices") or ():
            if self.ttft_s is None:
                self.ttft_s = time.monotonic() - started
            self.text.append(choice.get("text") or "")
            found = choice.get("logprobs") or {}
            given = choice.get("token_ids")
            self.ids.extend(map(int, given) if given else map(_token_id, found.get("tokens") or ()))
            self.logprobs.extend(_finite(p) for p in found.get("token_logprobs") or ())
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens")
            details = usage.get("prompt_tokens_details") or {}
            self.cached_tokens = details.get("cached_tokens")


def _token_id(token: str) -> int:
    """vLLM writes a token as token_id:NUMBER when asked for ids."""
    _, _, number = str(token).partition("token_id:")
    return int(number) if number.isdigit() else -1


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ServerError(f"{what}: expected JSON, seen: {text[:200]!r}") from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
