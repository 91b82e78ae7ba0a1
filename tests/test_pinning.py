"""`./inv pin`: what moved, what vanished, and what is written; against a real registry and one that misbehaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path

import pytest

import registries
from kvproof import pinning
from kvproof.console import Console
from kvproof.errors import CannotRunError, KvproofError, RecipeError, UsageError
from kvproof.image_lock import read_images
from kvproof.paths import IMAGES, PROJECT
from kvproof.pinning import Row
from kvproof.references import Logins
from kvproof.registry import Manifest, Registry
from registries import Real, Reply

pytestmark = pytest.mark.process
GONE = "sha256:" + "0" * 64
DAY = date(2026, 12, 1)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Real]]:
    known: list[Real] = []
    with ExitStack() as stack:
        def start(program: str) -> Real:
            if not known:
                known.append(stack.enter_context(registries.running(program, tmp_path_factory.mktemp("r") / "own")))
            return known[0]

        yield start


@pytest.fixture
def real(started: Callable[[str], Real], require_tool: Callable[[str], str]) -> Real:
    return started(require_tool(registries.PROGRAM))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


@pytest.fixture
def repository(real: Real, request: pytest.FixtureRequest) -> str:
    """A repository of the test's own."""
    return f"{real.host}/{request.node.name.lower().replace('[', '-').replace(']', '').replace('_', '-')}"


def path_of(repository: str) -> str:
    return repository.partition("/")[2]


def entry(name: str, repository: str, tag: str = "v1", index: str | None = None, learned: str = "reported",
          platforms: dict[str, str] | None = None, more: str = "") -> str:
    lines = [f"[{name}]", f'repository = "{repository}"', f'tag = "{tag}"', *([f'index = "{index}"'] if index else []),
             'contains = { vllm = "1.0" }', *([more] if more else []), f'learned = "{learned}"', 'date = "2026-01-02"',
             'sources = ["a page"]']
    if platforms:
        lines += [f"[{name}.platforms]", *(f'"{platform}" = "{digest}"' for platform, digest in platforms.items())]
    return "\n".join(lines) + "\n"


def write(images: Path, *entries: str) -> str:
    text = "# The lock\n\n" + "\n".join(entries)
    (images / "lock.toml").write_text(text)
    return text


def rows(images: Path, *words: str) -> dict[str, Row]:
    with Registry(Logins(images / "none.json"), timeout_s=5) as registry:
        return {row.name: row for row in pinning.compare(pinning.chosen(words, images), registry,
                                                         Console(quiet=True))}


def states(images: Path) -> dict[str, str]:
    return {name: row.state for name, row in rows(images).items()}


# --- comparing -----------------------------------------------------------------------------------


def test_a_tag_that_stays_and_one_that_moves(real: Real, repository: str, images: Path) -> None:
    path = path_of(repository)
    old = real.push_image(path, "v1", text="old")
    write(images, entry("engine", repository, platforms={"linux/amd64": old}))
    assert states(images) == {"engine": "same"}
    pinning.raise_for(list(rows(images).values()), check=True)
    new = real.push_image(path, "v1", text="new")
    found = rows(images)["engine"]
    assert (found.state, found.old_digest, found.new.digest, found.notes) == ("moved", old, new, ())
    with pytest.raises(KvproofError, match="engine: the tag has another digest now") as caught:
        pinning.raise_for([found], check=True)
    assert (caught.value.exit_code, "./inv pin engine --update" in caught.value.tip) == (1, True)
    pinning.raise_for([found], check=False)


@pytest.mark.parametrize("other", [True, False])
def test_a_deleted_manifest_has_vanished(other: bool, real: Real, repository: str, images: Path) -> None:
    path = path_of(repository)
    old = real.push_image(path, "v1", text="old")
    write(images, entry("engine", repository, platforms={"linux/amd64": old}))
    new = real.push_image(path, "v1", text="new") if other else None
    real.delete(path, old)
    found = rows(images)["engine"]
    assert (found.state, found.new.digest if found.new else None) == ("vanished", new)
    assert found.notes == (f"{old} is not there any more",)
    with pytest.raises(KvproofError, match="engine: the digest on record is gone"):
        pinning.raise_for([found], check=True)


def test_a_removed_tag_is_no_removed_image(real: Real, repository: str, images: Path) -> None:
    path = path_of(repository)
    old = real.push_image(path, "v1")
    real.untag(path, "v1")
    write(images, entry("engine", repository, platforms={"linux/amd64": old}))
    found = rows(images)["engine"]
    assert (found.state, found.new, found.pinned) == ("untagged", None, None)
    pinning.raise_for([found], check=True)


def test_what_was_unresolved(real: Real, repository: str, images: Path) -> None:
    digest = real.push_image(path_of(repository), "v1")
    write(images, entry("engine", repository, learned="unresolved"),
          entry("lost", repository, "v2", learned="unresolved"))
    found = rows(images)
    assert {name: row.state for name, row in found.items()} == {"engine": "new", "lost": "missing"}
    assert found["engine"].new.digest == digest
    pinning.raise_for(list(found.values()), check=True)


def test_an_index_and_a_platform_are_told_apart(real: Real, repository: str, images: Path) -> None:
    path = path_of(repository)
    children = {"linux/amd64": real.push_image(path, text="x86"),
                "linux/arm64": real.push_image(path, platform="linux/arm64", text="arm")}
    index = real.push_index(path, "v1", children)
    write(images, entry("right", repository, index=index), entry("whole", repository, index=index, platforms=children),
          entry("part", repository, platforms={"linux/amd64": children["linux/amd64"]}),
          entry("mistaken", repository, index=children["linux/arm64"]))
    found = rows(images)
    assert {row.state for row in found.values()} == {"same"}
    assert found["mistaken"].notes == ("the digest on record as the index is linux/arm64's",)
    pinning.write(list(found.values()), images=images, today=DAY)
    for image in read_images(images).values():
        assert (image.index, image.platforms) == (index, children)


def test_a_registry_that_fails_hides_no_other(real: Real, repository: str, images: Path) -> None:
    digest = real.push_image(path_of(repository), "v1")
    page = Reply(200, b"<html>Sign in, token hf_abcdefghijklmnop", {"Content-Type": "text/html"})
    with registries.made(lambda asked: page) as server:
        write(images, entry("web", f"{server.host}/a/b", index=GONE), entry("bad", "A B", index=GONE),
              entry("engine", repository, platforms={"linux/amd64": digest}))
        found = list(rows(images).values())
    assert {row.name: row.state for row in found} == {"web": "failed", "bad": "failed", "engine": "same"}
    assert "hf_abcdef" not in pinning.text(found) + json.dumps([row.as_data() for row in found])
    with pytest.raises(CannotRunError, match="2 of 3 images could not be compared: web, bad") as caught:
        pinning.raise_for(found, check=True)
    assert caught.value.exit_code == 3


# --- nightlies -----------------------------------------------------------------------------------

OLD, NEW, ELSE = "1" * 40, "2" * 40, "3" * 40


def push_nightlies(real: Real, path: str) -> dict[str, str]:
    """Two nightlies with their dates against the order of their names, and what is none."""
    pushed = {}
    for commit, created in ((OLD, "2026-08-19T01:00:00Z"), (NEW, "2026-08-10T01:00:00Z")):
        child = real.push_image(path, text=commit, created=created)
        pushed[commit] = real.push_index(path, f"nightly-{commit}", {"linux/amd64": child})
    real.push_image(path, "v1", created="2026-11-01T00:00:00Z", text="release")
    real.push_image(path, f"cu130-nightly-{ELSE}", created="2026-11-01T00:00:00Z", text="another kind")
    real.push_image(path, f"nightly-{ELSE}", created=None, text="without a date")
    return pushed


def test_the_newest_nightly_is_the_one_that_was_built_last(real: Real, repository: str, images: Path) -> None:
    pushed = push_nightlies(real, path_of(repository))
    write(images, entry("nightly", repository, f"nightly-{NEW}", index=pushed[NEW]))
    found = rows(images)["nightly"]
    assert (found.state, found.tag, found.created) == ("newer", f"nightly-{OLD}", "2026-08-19")
    assert "removed after some weeks" in found.notes[0]
    pinning.raise_for([found], check=True)
    pinning.write([found], images=images, today=DAY)
    image = read_images(images)["nightly"]
    assert (image.tag, image.index, image.commit, image.created) == (
        f"nightly-{OLD}", pushed[OLD], OLD, "2026-08-19")
    assert (image.contains, image.learned) == ({"vllm": f"0.dev0+g{OLD[:9]}"}, "registry")
    assert states(images) == {"nightly": "same"}


def test_a_nightly_whose_tag_is_gone_is_still_there(real: Real, repository: str, images: Path) -> None:
    path = path_of(repository)
    digest = real.push_image(path, "v1")
    write(images, entry("nightly", repository, f"nightly-{OLD}", platforms={"linux/amd64": digest}))
    assert states(images) == {"nightly": "untagged"}
    real.delete(path, digest)
    assert states(images) == {"nightly": "vanished"}


def test_a_nightly_that_is_gone_names_its_successor(real: Real, repository: str, images: Path) -> None:
    pushed = push_nightlies(real, path_of(repository))
    write(images, entry("nightly", repository, f"nightly-{ELSE}", index=GONE))
    found = rows(images)["nightly"]
    assert (found.state, found.new.digest, found.notes[0]) == (
        "vanished", pushed[OLD], f"{GONE} is not there any more")


def test_too_many_nightlies_are_not_all_asked_for(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "_MAX_NIGHTLIES", 2)
    tags = json.dumps({"tags": [f"nightly-{n:040x}" for n in range(3)]}).encode()
    with registries.made(lambda asked: Reply(200 if "tags" in asked.path else 404, tags)) as server:
        write(images, entry("nightly", f"{server.host}/a/b", f"nightly-{OLD}", learned="unresolved"))
        found = rows(images)["nightly"]
    assert found.state == "failed"
    assert "has 3 tags nightly-COMMIT" in found.error.message


# --- writing -------------------------------------------------------------------------------------


def row(images: Path, name: str, new: Manifest, **changes: str) -> Row:
    image = read_images(images)[name]
    return Row(name, image, "moved", changes.pop("tag", image.tag), new, **changes)


INDEX = Manifest("sha256:" + "c" * 64, True, {"linux/amd64": "sha256:" + "d" * 64})
SINGLE = Manifest("sha256:" + "e" * 64, False, {"linux/arm64": "sha256:" + "e" * 64})


def test_the_lock_keeps_its_comments_and_its_other_entries(images: Path) -> None:
    old = "# Of nothing\n" + entry('"a-1.0"', "a/b", index=GONE, platforms={"linux/amd64": "sha256:" + "1" * 64},
                                   more='# Why\nprepare = ["x"]')
    text = write(images, entry("first", "f/g", index=GONE), old, "# Of the last\n" + entry("last", "l/m", index=GONE))
    assert pinning.write([row(images, "a-1.0", INDEX)], images=images, today=DAY) == [images / "lock.toml"]
    new = (images / "lock.toml").read_text()
    expected = text.replace(old, old.replace(GONE, INDEX.digest).replace("sha256:" + "1" * 64, "sha256:" + "d" * 64)
                            .replace('"reported"', '"registry"').replace("2026-01-02", "2026-12-01")
                            .replace('["a page"]', '["docker.io"]'))
    assert new == expected


@pytest.mark.parametrize("name", sorted(read_images()))
@pytest.mark.parametrize("new", [INDEX, SINGLE], ids=["index", "single"])
def test_every_entry_of_the_real_lock_can_be_written(name: str, new: Manifest, images: Path) -> None:
    (images / "lock.toml").write_text((IMAGES / "lock.toml").read_text())
    before = read_images(images)
    pinning.write([row(images, name, new, tag=f"nightly-{NEW}", created="2026-08-10") if "nightly" in name
                   else row(images, name, new)], images=images, today=DAY)
    after = read_images(images)
    assert (after[name].index, after[name].platforms) == (new.digest if new.is_index else None, new.platforms)
    assert (after[name].learned, after[name].date) == ("registry", "2026-12-01")
    assert {n: i for n, i in after.items() if n != name} == {n: i for n, i in before.items() if n != name}
    comments = [line for line in (IMAGES / "lock.toml").read_text().splitlines() if line.startswith("#")]
    assert [line for line in (images / "lock.toml").read_text().splitlines() if line.startswith("#")] == comments


def test_writing_what_is_there_changes_nothing(images: Path) -> None:
    write(images, entry("a", "a/b", index=GONE))
    pinning.write([row(images, "a", INDEX)], images=images, today=DAY)
    before = (images / "lock.toml").read_text()
    assert pinning.write([row(images, "a", INDEX)], images=images, today=DAY) == []
    assert pinning.write([Row("a", read_images(images)["a"], "failed", "v1")], images=images, today=DAY) == []
    assert (images / "lock.toml").read_text() == before


@pytest.mark.parametrize("change", [('sources = ["a page"]', 'sources = [\n  "a page",\n]'),
                                    ('tag = "v1"', "tag = '''\nv1'''"), ("[a]", "[ a ]")])
def test_a_layout_that_cannot_be_edited_is_left_alone(change: tuple[str, str], images: Path) -> None:
    text = write(images, entry("a", "a/b", index=GONE)).replace(*change)
    (images / "lock.toml").write_text(text)
    with pytest.raises(RecipeError, match="the entry a is laid out in a way that cannot be edited here") as caught:
        pinning.write([row(images, "a", INDEX)], images=images, today=DAY)
    assert INDEX.digest in caught.value.tip
    assert (images / "lock.toml").read_text() == text


def test_dockerfiles_follow(images: Path) -> None:
    write(images, entry("a", "a/b", index=GONE), entry("b", "a/c", index=GONE))
    for name, base in (("one", f"a/b:v1@{GONE}"), ("two", f"a/c:v1@{GONE}")):
        (images / name).mkdir()
        (images / name / "Dockerfile").write_text(f"# Why\nARG BASE={base}\nFROM ${{BASE}}\n")
    changed = pinning.write([row(images, "a", INDEX)], images=images, today=DAY)
    assert changed == [images / "lock.toml", images / "one" / "Dockerfile"]
    assert (images / "one" / "Dockerfile").read_text() == (
        f"# Why\nARG BASE={read_images(images)['a'].reference}\nFROM ${{BASE}}\n")
    assert INDEX.digest in (images / "one" / "Dockerfile").read_text()


# --- the command ---------------------------------------------------------------------------------


def test_images_are_chosen_by_name_or_by_tag(images: Path) -> None:
    write(images, entry("a", "x/y", "v1", index=GONE), entry("b", "x/y", "v2", index=GONE))
    assert list(pinning.chosen((), images)) == ["a", "b"]
    assert list(pinning.chosen(("b",), images)) == list(pinning.chosen(("x/y:v2",), images)) == ["b"]
    assert list(pinning.chosen(("b", "x/y:v1"), images)) == ["b", "a"]
    with pytest.raises(UsageError, match=r"no image of images/lock\.toml is called 'c'"):
        pinning.chosen(("c",), images)


def test_the_text_shows_old_and_new(images: Path) -> None:
    write(images, entry("a", "x/y", index=GONE), entry("longer", "x/z", learned="unresolved"))
    known = read_images(images)
    shown = pinning.text([Row("a", known["a"], "moved", "v1", INDEX, None, ("a note",)),
                          Row("longer", known["longer"], "missing", "v1")])
    assert shown.splitlines() == [
        "a       moved    sha256:000000000000 → sha256:cccccccccccc", "        a note", "longer  missing  none"]
    assert pinning.text([]) == "images/lock.toml names no image"


def inv(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROJECT / "inv"), *words], capture_output=True, text=True, timeout=60, check=False)


def test_the_command_takes_several_images_and_refuses_what_is_none() -> None:
    done = inv("pin", "vllm", "nothing-of-that-kind", "--check", "--json")
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (2, 2)
    assert "no image of images/lock.toml is called 'nothing-of-that-kind'" in done.stderr
    done = inv("pin", "--check", "--update", "vllm")
    assert (done.returncode, done.stdout) == (2, "")
    assert "exclude each other" in done.stderr
    assert "pin [IMAGE ...]" in inv("pin", "--help").stdout


def test_the_command_writes_what_the_registry_says(real: Real, repository: str, tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "tasks.py", tmp_path)
    (tmp_path / "images").mkdir()
    path = path_of(repository)
    old = real.push_image(path, "v1", text="old")
    write(tmp_path / "images", entry("engine", repository, platforms={"linux/amd64": old}))
    new = real.push_image(path, "v1", text="new")

    def pin(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "kvproof.cli", "pin", *words], cwd=tmp_path, capture_output=True,
                              text=True, timeout=60, check=False,
                              env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "HOME": str(tmp_path)})

    done = pin("engine", "--check")
    assert (done.returncode, done.stdout) == (1, f"engine  moved  {old[:19]} → {new[:19]}\n")
    assert "next: ./inv pin engine --update" in done.stderr
    done = pin("engine", "--update", "--json")
    assert (done.returncode, json.loads(done.stdout)[0]["new"]) == (0, new), done.stderr
    assert f"wrote {tmp_path / 'images' / 'lock.toml'}" in done.stderr
    done = pin("--check")
    assert (done.returncode, done.stdout) == (0, f"engine  same  {new[:19]}\n"), done.stderr
