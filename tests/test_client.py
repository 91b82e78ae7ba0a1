"""HTTP to servers that behave and to servers that do not."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvproof.client import EngineClient, Http, Stopwatch
from kvproof.errors import ServerError

TOKEN = {"choices": [{"text": "a", "logprobs": {"tokens": ["token_id:7"], "token_logprobs": [-0.5]}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
Behaviour = Callable[[BaseHTTPRequestHandler, dict], None]


@contextlib.contextmanager
def server(behave: Behaviour) -> Iterator[str]:
    """A server on this host; every request is answered by `behave`, which also gets the JSON body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with contextlib.suppress(ConnectionError):
                behave(self, json.loads(body) if body else {})

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.daemon_threads = True
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def answers(content: str | bytes, status: int = 200) -> Behaviour:
    data = content if isinstance(content, bytes) else content.encode()

    def behave(handler: BaseHTTPRequestHandler, _: dict) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return behave


def streams(*events: dict | str, pause_s: float = 0) -> Behaviour:
    def behave(handler: BaseHTTPRequestHandler, _: dict) -> None:
        handler.send_response(200)
        handler.end_headers()
        for event in events:
            handler.wfile.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
            handler.wfile.flush()
            time.sleep(pause_s)

    return behave


def complete(behave: Behaviour, timeout_s: float = 5, **options):
    with server(behave) as url, contextlib.closing(EngineClient("engine", url, "m", Stopwatch(), timeout_s)) as client:
        return client.complete([1, 2], max_tokens=4, **options)


def test_a_whole_answer() -> None:
    answer = complete(streams(TOKEN, TOKEN, USAGE, "[DONE]"))
    assert (answer.text, answer.token_ids, answer.logprobs) == ("aa", (7, 7), (-0.5, -0.5))
    assert (answer.prompt_tokens, answer.cached_tokens, answer.error) == (9, 4, None)
    assert 0 < answer.ttft_s <= answer.duration_s


def test_what_is_asked() -> None:
    seen = []

    def behave(handler: BaseHTTPRequestHandler, body: dict) -> None:
        seen.append((handler.path, body))
        streams("[DONE]")(handler, body)

    complete(behave, salt="salt")
    complete(behave)
    (path, salted), (_, plain) = seen
    assert path == "/v1/completions"
    assert salted == plain | {"cache_salt": "salt"}
    assert plain == {"model": "m", "prompt": [1, 2], "max_tokens": 4, "temperature": 0, "seed": 0, "logprobs": 1,
                     "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
                     "return_tokens_as_token_ids": True}


def test_ids_that_are_given_as_such_come_first() -> None:
    told = {"choices": [TOKEN["choices"][0] | {"token_ids": [8]}]}
    untold = {"choices": [{"text": "b", "logprobs": {"tokens": ["b"], "token_logprobs": [-1]}, "token_ids": None}]}
    assert complete(streams(told, TOKEN, untold, "[DONE]")).token_ids == (8, 7, -1)


def test_the_first_token_is_timed() -> None:
    answer = complete(streams({"choices": []}, TOKEN, "[DONE]", pause_s=0.05))
    assert 0.05 <= answer.ttft_s < answer.duration_s


@pytest.mark.parametrize("probability", ["NaN", "null", "-Infinity", '"x"', "1e999"])
def test_what_is_no_number_is_unknown(probability: str) -> None:
    event = json.dumps(TOKEN).replace("-0.5", probability)
    assert complete(streams(event, "[DONE]")).logprobs == (None,)


def test_without_usage_or_ids() -> None:
    event = {"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [-1]}}]}
    answer = complete(streams(event, {"choices": [{"text": "b"}]}, "[DONE]"))
    assert (answer.token_ids, answer.prompt_tokens, answer.cached_tokens) == ((-1,), None, None)


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        (answers("out of order", 500), "HTTP 500: out of order"),
        (answers('{"error": "nan"}', 400), 'HTTP 400: {"error": "nan"}'),
        (streams(TOKEN), "the answer ended before its end mark"),
        (streams(TOKEN, {"error": {"message": "lost"}}, "[DONE]"), "error in the stream: {'message': 'lost'}"),
        (streams("nonsense"), "the stream holds something that is no completion: 'nonsense'"),
        (answers(""), "the answer ended before its end mark"),
    ],
)
def test_a_failed_request_says_why(behave: Behaviour, said: str) -> None:
    answer = complete(behave)
    assert answer.error == said
    assert not answer.timed_out


@pytest.mark.parametrize(
    "behave",
    [lambda *_: time.sleep(0.6), streams(TOKEN, TOKEN, "[DONE]", pause_s=0.4), streams(*[TOKEN] * 20, pause_s=0.05)],
    ids=["silent", "stalls", "drips"],
)
def test_every_answer_has_a_time_limit(behave: Behaviour) -> None:
    answer = complete(behave, timeout_s=0.3)
    assert answer.error == "no complete answer within 0.3 s"
    assert answer.timed_out
    assert answer.duration_s < 0.6


def test_a_server_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with contextlib.closing(EngineClient("engine", url, "m", Stopwatch())) as client:
        assert "Connection refused" in client.complete("x", max_tokens=1).error
        assert not client.is_healthy("/health")
        with pytest.raises(ServerError, match=r"engine: GET /v1/models failed: ConnectError") as caught:
            client.models()
        assert caught.value.tip


def test_plain_requests() -> None:
    with server(answers('{"data": [{"id": "a"}, {"id": "b"}]}')) as url:
        client = EngineClient("engine", url + "/", "m", Stopwatch())
        assert client.models() == ["a", "b"]
        assert client.is_healthy("/health")
        assert client.get_text("/x").startswith("{")
        assert client.post_json("/x", {})["data"]
        with pytest.raises(ServerError, match=r"no choices\[0\].message.content"):
            client.chat("hello", max_tokens=1)
        client.close()


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        (answers("busy", 503), "cache server: GET /status answered HTTP 503: busy"),
        (answers("<html>"), "cache server: GET /status: expected JSON, seen: '<html>'"),
        (lambda *_: time.sleep(0.4), "cache server: no answer to GET /status within 0.2 s"),
    ],
)
def test_a_server_that_answers_wrongly(behave: Behaviour, said: str) -> None:
    with server(behave) as url, contextlib.closing(Http("cache server", url, Stopwatch(), 0.2)) as http:
        with pytest.raises(ServerError) as caught:
            http.get_json("/status")
        assert caught.value.message == said


def test_an_empty_answer_to_a_post() -> None:
    with server(answers("")) as url, contextlib.closing(Http("engine", url, Stopwatch())) as http:
        assert http.post_json("/reset_prefix_cache") is None


@pytest.mark.parametrize("status", [404, 500])
def test_an_error_status_is_not_health(status: int) -> None:
    with server(answers("", status)) as url, contextlib.closing(Http("engine", url, Stopwatch())) as http:
        assert not http.is_healthy("/health")


def test_waiting_is_added_up_once() -> None:
    watch = Stopwatch()
    with watch.waiting(), watch.waiting():
        time.sleep(0.02)
    once = watch.waited_s
    assert 0.02 <= once < 0.2
    with contextlib.suppress(ZeroDivisionError), watch.waiting():
        raise ZeroDivisionError
    assert once < watch.waited_s < once + 0.1
