"""What a registry says is checked, and what goes wrong is told apart: real registries, and servers that misbehave."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

import registries
from kvproof.errors import CannotRunError, KvproofError, ServerError, UsageError
from kvproof.references import Login, Logins, Reference, parse, read_logins
from kvproof.registry import Registry
from registries import DOCKER_IMAGE, DOCKER_INDEX, OCI_IMAGE, PASSWORD, USER, Asked, Real, Reply, sha256

pytestmark = pytest.mark.process
DIGEST = "sha256:" + "a" * 64
NO_LOGINS = Logins(Path("/none/config.json"))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Real]]:
    """`started(program, login=…)`: a registry, once per module and kind."""
    with ExitStack() as stack:
        known: dict[bool, Real] = {}

        def start(program: str, *, login: bool = False) -> Real:
            if login not in known:
                folder = tmp_path_factory.mktemp("registry") / "own"
                known[login] = stack.enter_context(registries.running(program, folder, login=login))
            return known[login]

        yield start


@pytest.fixture
def real(started: Callable[..., Real], require_tool: Callable[[str], str]) -> Real:
    return started(require_tool(registries.PROGRAM))


@pytest.fixture
def closed(started: Callable[..., Real], require_tool: Callable[[str], str]) -> Real:
    """One that wants user and password."""
    return started(require_tool(registries.PROGRAM), login=True)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry(NO_LOGINS, timeout_s=5, wait=lambda _: None) as made:
        yield made


def at(host: str, tag: str = "v1", path: str = "team/engine") -> Reference:
    return parse(f"{host}/{path}:{tag}")


# --- a real registry -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [OCI_IMAGE, DOCKER_IMAGE])
def test_a_single_image_is_its_platform_and_no_index(kind: str, real: Real, registry: Registry) -> None:
    digest = real.push_image("single/engine", "v1", platform="linux/arm64/v8", kind=kind)
    found = registry.manifest(at(real.host, path="single/engine"))
    assert found is not None
    assert (found.digest, found.is_index, found.platforms) == (digest, False, {"linux/arm64": digest})
    assert found.created == datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)


@pytest.mark.parametrize("kind", [registries.OCI_INDEX, DOCKER_INDEX])
def test_an_index_keeps_its_platforms_apart(kind: str, real: Real, registry: Registry) -> None:
    children = {"linux/amd64": real.push_image("multi/engine", text="x86"),
                "linux/arm64": real.push_image("multi/engine", platform="linux/arm64", text="arm"),
                "linux/arm/v7": real.push_image("multi/engine", platform="linux/arm/v7", text="arm7"),
                "unknown/unknown": real.push_image("multi/engine", text="attestation")}
    digest = real.push_index("multi/engine", "v1", children, kind)
    found = registry.manifest(at(real.host, path="multi/engine"))
    assert found is not None
    assert (found.digest, found.is_index, found.created) == (digest, True, None)
    del children["unknown/unknown"]
    assert found.platforms == children
    assert digest not in found.platforms.values()


def test_a_digest_is_there_until_it_is_deleted(real: Real, registry: Registry) -> None:
    digest = real.push_image("deleted/engine", "v1")
    exact = parse(f"{real.host}/deleted/engine@{digest}")
    tag = at(real.host, path="deleted/engine")
    assert registry.digest(exact) == registry.digest(tag) == digest
    assert registry.manifest(exact) == registry.manifest(tag)
    real.delete("deleted/engine", digest)
    assert registry.digest(exact) is registry.digest(tag) is registry.manifest(exact) is None


def test_what_is_not_there_is_none(real: Real, registry: Registry) -> None:
    assert registry.manifest(at(real.host, path="never/pushed")) is None
    assert registry.digest(at(real.host, "other", path="never/pushed")) is None
    assert registry.tags(at(real.host, path="never/pushed")) == []


def test_every_tag_is_listed(real: Real, registry: Registry) -> None:
    for name in ("b", "a", "c"):
        real.push_image("listed/engine", name)
    assert registry.tags(at(real.host, path="listed/engine")) == ["a", "b", "c"]


@pytest.mark.parametrize("link", ["/v2/team/engine/tags/list?last={}&n=2", "list?last={}&n=2",
                                  "http://{host}/v2/team/engine/tags/list?last={}&n=2"])
def test_tags_come_in_pages(link: str, registry: Registry) -> None:
    """The real one above sends all in one page, whatever is asked for."""
    names = ["a", "b", "c", "d", "e"]

    def answer(asked: Asked) -> Reply:
        first = names.index(asked.path.partition("last=")[2][:1] or "a") + ("last=" in asked.path)
        page, more = names[first:first + 2], names[first + 2:]
        next_page = f'<{link.format(page[-1], host=server.host)}>; rel="next"'
        return Reply(200, json.dumps({"tags": page}).encode(), {"Link": next_page} if more else {})

    registry.page_size = 2
    with registries.made(answer) as server:
        assert registry.tags(at(server.host)) == names
    assert [asked.path.partition("?")[2] for asked in server.asked] == ["n=2", "last=b&n=2", "last=d&n=2"]


# --- logins --------------------------------------------------------------------------------------


def test_a_login_opens_what_is_closed(closed: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = closed.push_image("team/engine", "v1")
    word = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {closed.host: {"auth": word}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with Registry(timeout_s=5) as registry:
        assert registry.manifest(at(closed.host)).digest == digest
        assert registry.tags(at(closed.host)) == ["v1"]


@pytest.mark.parametrize("login", [None, Login(USER, "wrong-password"), Login("nobody", PASSWORD)])
def test_without_the_right_login_nothing_is_shown(login: Login | None, closed: Real) -> None:
    logins = Logins(Path("/none/config.json"), {closed.host: login} if login else {})
    with Registry(logins, timeout_s=5) as registry, pytest.raises(CannotRunError, match=r"login|user") as caught:
        registry.manifest(at(closed.host))
    assert f"docker login {closed.host}" in caught.value.tip
    assert PASSWORD not in str(caught.value) + caught.value.tip + repr(logins) + repr(registry)
    assert "wrong-password" not in str(caught.value) + repr(logins) + repr(registry)


IMAGE_CONFIG = json.dumps({"os": "linux", "architecture": "amd64"}).encode()
IMAGE = json.dumps({"schemaVersion": 2, "mediaType": OCI_IMAGE, "config": {"digest": sha256(IMAGE_CONFIG)},
                    "layers": []}).encode()


def serving(asked: Asked, **headers: str) -> Reply:
    """What an honest registry says."""
    if "/blobs/" in asked.path:
        return Reply(200, IMAGE_CONFIG)
    return Reply(200, IMAGE, {"Content-Type": OCI_IMAGE, "Docker-Content-Digest": sha256(IMAGE), **headers})


def test_a_token_is_fetched_and_used_again(registry: Registry) -> None:
    def answer(asked: Asked) -> Reply:
        if asked.path.startswith("/token"):
            return Reply(200, json.dumps({"access_token": "fixture-token"}).encode())
        if asked.headers.get("authorization") == "Bearer fixture-token":
            return serving(asked)
        realm = f'Bearer realm="http://{server.host}/token",service="fixture",scope="repository:team/engine:pull"'
        return Reply(401, b"", {"WWW-Authenticate": realm})

    with registries.made(answer) as server:
        assert registry.manifest(at(server.host)).digest == sha256(IMAGE)
        assert registry.digest(at(server.host)) == sha256(IMAGE)
    tokens = [asked for asked in server.asked if asked.path.startswith("/token")]
    assert [asked.path for asked in tokens] == ["/token?scope=repository%3Ateam%2Fengine%3Apull&service=fixture"]
    assert "authorization" not in tokens[0].headers


def test_the_token_server_gets_the_login_and_nobody_else(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        if asked.path.startswith("/token"):
            return Reply(200, json.dumps({"token": "fixture-token"}).encode())
        if "authorization" not in asked.headers:
            return Reply(401, b"", {"WWW-Authenticate": f'Bearer realm="http://{server.host}/token"'})
        return Reply(307, b"", {"Location": f"http://{other.host}/blob"}) if "/blobs/" in asked.path else serving(asked)

    with registries.made(lambda asked: Reply(200, IMAGE_CONFIG)) as other, registries.made(answer) as server:
        logins = Logins(tmp_path, {server.host: Login(USER, PASSWORD)})
        with Registry(logins, timeout_s=5) as registry:
            assert registry.manifest(at(server.host)).platforms == {"linux/amd64": sha256(IMAGE)}
    sent = {asked.path.partition("?")[0]: asked.headers.get("authorization") for asked in server.asked}
    assert sent["/token"] == "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    assert sent["/v2/team/engine/manifests/v1"] == "Bearer fixture-token"
    assert [asked.headers.get("authorization") for asked in other.asked] == [None]


@pytest.mark.parametrize(
    ("challenge", "kind", "said"),
    [
        ("Basic realm=fixture", CannotRunError, "wants user and password for team/engine"),
        ('Bearer realm="http://registry.example/token"', ServerError, "expected an https address"),
        ('Bearer realm="http://127.0.0.1.registry.example/token"', ServerError, "expected an https address"),
        ("Bearer", ServerError, "without saying which login it wants"),
        ("", ServerError, "without saying which login it wants"),
    ],
)
def test_a_401_that_cannot_be_answered(challenge: str, kind: type[KvproofError], said: str,
                                       registry: Registry) -> None:
    reply = Reply(401, b"", {"WWW-Authenticate": challenge} if challenge else {})
    with registries.made(lambda asked: reply) as server, pytest.raises(kind, match=said) as caught:
        registry.manifest(at(server.host))
    assert caught.value.tip


def test_a_repository_that_no_login_opens(registry: Registry) -> None:
    body = json.dumps({"errors": [{"code": "DENIED", "message": "no such repository, token hf_abcdefghijkl"}]}).encode()
    with registries.made(lambda asked: Reply(403, body)) as server, pytest.raises(CannotRunError) as caught:
        registry.tags(at(server.host))
    assert "does not show team/engine (HTTP 403: no such repository" in caught.value.message
    assert "hf_abcdef" not in caught.value.message


@pytest.mark.parametrize("body", [b"", b"[]", b'{"token": 1}', b'{"token": "a\\nX: y"}', b"<html>"])
def test_a_token_server_without_a_token(body: bytes, registry: Registry) -> None:
    def answer(asked: Asked) -> Reply:
        if asked.path.startswith("/token"):
            return Reply(200, body)
        return Reply(401, b"", {"WWW-Authenticate": f'Bearer realm="http://{server.host}/token"'})

    with registries.made(answer) as server, pytest.raises(ServerError, match=r"token|expected JSON"):
        registry.manifest(at(server.host))


def test_logins_are_read_as_docker_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert read_logins().of("docker.io") is None
    word = base64.b64encode(b"me:pass:word").decode()
    (tmp_path / "config.json").write_text(json.dumps({
        "auths": {"https://index.docker.io/v1/": {"auth": word}, "helped.example": {},
                  "nvcr.io": {"username": "$oauthtoken", "password": "p"}},
        "credHelpers": {"helped.example": "x"}, "HttpHeaders": {}}))
    logins = read_logins()
    assert logins.of("docker.io") == Login("me", "pass:word")
    assert logins.of("nvcr.io").user == "$oauthtoken"
    assert logins.of("helped.example") is None
    assert "credential helper" in logins.hint("helped.example")
    assert logins.hint("docker.io") == "docker login"
    assert logins.hint("other.example:5000") == "docker login other.example:5000"
    assert "pass:word" not in repr(logins)


@pytest.mark.parametrize("text", ["{", "[]", '{"auths": {"a.example": {"auth": "c2VjcmV0"}}}',
                                  '{"auths": {"a.example": {"auth": "%%%"}}}', '{"auths": [1]}'])
def test_a_damaged_login_file(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json: not the JSON that docker login writes") as caught:
        read_logins()
    assert "c2VjcmV0" not in str(caught.value)


# --- registries that misbehave -------------------------------------------------------------------


@pytest.mark.parametrize("wait", [lambda: "1", lambda: None,
                                  lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)])
def test_a_busy_registry_is_asked_again(wait: Callable[[], str | None]) -> None:
    def answer(asked: Asked) -> Reply:
        if len(server.asked) > 2:
            return serving(asked)
        named = wait()
        return Reply(429, b"", {"Retry-After": named} if named else {})

    pauses: list[float] = []
    with registries.made(answer) as server, Registry(NO_LOGINS, timeout_s=5, wait=pauses.append) as registry:
        assert registry.digest(at(server.host)) == sha256(IMAGE)
    assert len(pauses) == 2
    assert all(0 < pause <= 2 for pause in pauses)


@pytest.mark.parametrize(("status", "wait", "times"), [(429, "1", 4), (503, None, 4), (429, "3600", 1)])
def test_a_registry_that_stays_busy(status: int, wait: str | None, times: int) -> None:
    reply = Reply(status, b"", {"Retry-After": wait} if wait else {})
    pauses: list[float] = []
    with registries.made(lambda asked: reply) as server, Registry(NO_LOGINS, timeout_s=5,
                                                                  wait=pauses.append) as registry:
        with pytest.raises(CannotRunError, match=f"is busy: it answered HTTP {status} {times} times") as caught:
            registry.digest(at(server.host))
        assert len(server.asked) == times
    assert len(pauses) == times - 1
    assert "docker login" in caught.value.tip


@pytest.mark.parametrize("kind", ["silent", "slow"])
def test_a_registry_that_hangs(kind: str) -> None:
    over = threading.Event()
    reply = Reply(hang=over) if kind == "silent" else Reply(200, b"x" * 1000, drip_s=0.2)
    with registries.made(lambda asked: reply) as server, Registry(NO_LOGINS, timeout_s=0.6) as registry:
        started = time.monotonic()
        for _ in range(3):
            with pytest.raises(CannotRunError, match=r"did not answer GET within 0\.6 s"):
                registry.manifest(at(server.host))
        assert time.monotonic() - started < 5
        assert len(server.asked) == 1, "waited for more than once"
        over.set()


def test_a_registry_that_is_not_there(registry: Registry) -> None:
    with registries.made(lambda asked: Reply()) as server:
        pass
    with pytest.raises(CannotRunError, match=f"{server.host} cannot be asked: ") as caught:
        registry.digest(at(server.host))
    assert caught.value.exit_code == 3


LIE = "sha256:" + "b" * 64


@pytest.mark.parametrize("lie", ["header", "body", "configuration", "head"])
def test_a_digest_that_is_not_that_of_the_bytes(lie: str, registry: Registry) -> None:
    def answer(asked: Asked) -> Reply:
        if lie == "header":
            return serving(asked, **{"Docker-Content-Digest": LIE})
        if lie == "configuration" and "/blobs/" in asked.path:
            return Reply(200, IMAGE_CONFIG + b" ")
        if lie == "head":
            return Reply(200, b"", {"Docker-Content-Digest": LIE})
        return serving(asked)

    with registries.made(answer) as server:
        ask = registry.digest if lie == "head" else registry.manifest
        word = {"head": f"@{sha256(IMAGE)}", "body": f"@{LIE}"}.get(lie, ":v1")
        with pytest.raises(ServerError, match=r"sent sha256:.*, expected sha256:"):
            ask(parse(f"{server.host}/team/engine{word}"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html><title>Sign in</title>", r"answered with text/html, expected JSON; it begins: '<html>"),
        (b"[]", "expected JSON"),
        (b"{}", "answered with text/html, expected an image or an index"),
        (b'{"mediaType": "application/vnd.docker.distribution.manifest.v1+json"}', "expected an image or an index"),
        (json.dumps({"mediaType": registries.OCI_INDEX, "manifests": [1]}).encode(), "the index .* cannot be read"),
        (json.dumps({"mediaType": OCI_IMAGE, "config": {"digest": "md5:1"}}).encode(), "expected an image"),
        (b"[" * 100_000, "expected JSON"),
    ],
)
def test_an_answer_that_is_no_manifest(body: bytes, said: str, registry: Registry) -> None:
    reply = Reply(200, body, {"Content-Type": "text/html; charset=utf-8"})
    with registries.made(lambda asked: reply) as server, pytest.raises(ServerError, match=said) as caught:
        registry.manifest(at(server.host))
    assert caught.value.tip or "cannot be read" in said


def test_a_missing_digest_header_is_made_up_for(registry: Registry) -> None:
    def answer(asked: Asked) -> Reply:
        return Reply(200, IMAGE_CONFIG if "/blobs/" in asked.path else IMAGE, {"Content-Type": OCI_IMAGE})

    with registries.made(answer) as server:
        assert registry.digest(at(server.host)) == sha256(IMAGE)


def test_an_answer_without_end_is_cut_off(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.registry._MAX_BYTES", 1000)
    with registries.made(lambda asked: Reply(200, b"x" * 5000)) as server, \
            pytest.raises(ServerError, match="answered more than 1000 bytes"):
        registry.manifest(at(server.host))


def test_another_status_is_shown(registry: Registry) -> None:
    body = json.dumps({"errors": [{"code": "UNSUPPORTED"}]}).encode()
    with registries.made(lambda asked: Reply(418, body)) as server, \
            pytest.raises(ServerError, match="answered HTTP 418: UNSUPPORTED"):
        registry.manifest(at(server.host))


@pytest.mark.parametrize(("link", "said"), [
    ("</v2/team/engine/tags/list?last=a&n=1000>; rel=\"next\"", "does not end"),
    ("<http://registry.example/v2/x/tags/list>; rel=\"next\"", "goes on at registry.example, expected the same"),
])
def test_a_list_of_tags_that_leads_astray(link: str, said: str, registry: Registry) -> None:
    reply = Reply(200, b'{"tags": ["a"]}', {"Link": link})
    with registries.made(lambda asked: reply) as server, pytest.raises(ServerError, match=said):
        registry.tags(at(server.host))


def test_a_registry_elsewhere_is_never_asked_without_encryption() -> None:
    assert parse("nvcr.io/nvidia/x").url == "https://nvcr.io"
    assert parse("localhost.example:5000/x").url == "https://localhost.example:5000"
    assert parse("127.0.0.1:5000/x").url == "http://127.0.0.1:5000"
    client = Registry(NO_LOGINS)._client(parse("nvcr.io/nvidia/x"))
    with pytest.raises(Exception, match="without encryption"):
        client.get("http://127.0.0.1:9/")
    client.close()


# --- references ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("vllm/vllm-openai:v0.29.0", "docker.io/vllm/vllm-openai:v0.29.0"),
        ("index.docker.io/python:1", "docker.io/library/python:1"),
        (f"a/b@{DIGEST}", f"docker.io/a/b@{DIGEST}"),
        (f"a/b:c@{DIGEST}", f"docker.io/a/b:c@{DIGEST}"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc20", "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc20"),
        ("localhost/a:b", "localhost/a:b"),
        ("registry.example:5000/a/b:c", "registry.example:5000/a/b:c"),
        ("[::1]:5000/a:b", "[::1]:5000/a:b"),
    ],
)
def test_references(text: str, expected: str) -> None:
    assert str(parse(text)) == expected
    assert str(parse(str(parse(text)))) == expected


@pytest.mark.parametrize("text", ["", ":", "@", "a b", "a//b", "a:", "a:-b", "a@", "a@sha256:12", f"a@{DIGEST}0",
                                  "host:99999/a", "host:/a", "a/../b", "user@host.example/a", "http://host.example/a",
                                  "a:b:c", "\n", "-a"])
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        parse(text)
