"""Checkpoints: made once, the same whatever the order, and never used when a file was changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kvproof import weights
from kvproof.console import Console
from kvproof.errors import EnvironmentBuildError, Interrupted, RecipeError
from kvproof.recipe import Checkpoint, ModelBuild
from kvproof.weights import Weights, builder_path, location

BUILT = Checkpoint(repository="some/model", revision="1",
                   build=ModelBuild(builder="tiny_gemma4", seed=3, config={"hidden_size": 8}))
HUB = Checkpoint(repository="some/model", revision="abc")


def ensure(checkpoint: Checkpoint = BUILT) -> Weights:
    return weights.ensure(checkpoint, "dummy", "lock", Path("python"), Console(quiet=True))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Builders are not run but write two small files; what was asked for is collected."""
    seen: list[list[str]] = []

    def build(argv: list[str], environment: dict, log: Path, on_line: Callable[[str], None]) -> int:
        seen.append(argv)
        assert environment["HF_HUB_OFFLINE"] == "1"
        folder = Path(argv[2])
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")
        return 0

    monkeypatch.setattr(weights, "run_step", build)
    return seen


def test_it_is_built_once(builds: list[list[str]], tmp_cache: Path) -> None:
    first, second = ensure(), ensure()
    assert first == second
    assert len(builds) == 1
    assert Path(first.location).parent == tmp_cache / "models"
    assert first.facts.files_sha256 == {"config.json": hashlib.sha256(b"{}").hexdigest(),
                                        "model.safetensors": hashlib.sha256(b"weights").hexdigest()}
    assert builds[0][1] == str(builder_path("tiny_gemma4"))
    assert json.loads(builds[0][3]) == {"seed": 3, "config": {"hidden_size": 8}}
    assert [p.name for p in (tmp_cache / "models").iterdir()] == [Path(first.location).name]


def test_all_that_decides_the_weights_decides_where_they_are() -> None:
    changed = [
        BUILT.model_copy(update={"revision": "2"}),
        BUILT.model_copy(update={"build": BUILT.build.model_copy(update={"seed": 4})}),
        BUILT.model_copy(update={"build": BUILT.build.model_copy(update={"config": {}})}),
    ]
    places = {location(c, "lock") for c in (BUILT, *changed)} | {location(BUILT, "other lock")}
    assert len(places) == 5
    assert location(BUILT, "lock") in places


@pytest.mark.parametrize("change", ["edit", "remove"])
def test_a_changed_file_is_not_used(builds: list[list[str]], change: str) -> None:
    file = Path(ensure().location) / "model.safetensors"
    if change == "edit":
        file.write_bytes(b"other")
    else:
        file.unlink()
    with pytest.raises(EnvironmentBuildError, match=r"model\.safetensors") as caught:
        ensure()
    assert caught.value.tip == f"remove {file.parent}; the next run makes it again"


def test_a_build_without_its_sums_is_made_again(builds: list[list[str]]) -> None:
    folder = Path(ensure().location)
    (folder / "kvproof-sha256.json").unlink()
    ensure()
    assert len(builds) == 2


@pytest.mark.parametrize("ending", [1, Interrupted("now")], ids=["fails", "is interrupted"])
def test_a_build_that(builds: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_cache: Path, ending) -> None:
    build = weights.run_step

    def end(argv, environment, log, on_line):
        build(argv, environment, log, on_line)
        if isinstance(ending, Exception):
            raise ending
        log.write_text("Traceback\nValueError: bad config\n")
        return ending

    monkeypatch.setattr(weights, "run_step", end)
    with pytest.raises((EnvironmentBuildError, Interrupted)) as caught:
        ensure()
    assert not [p for p in (tmp_cache / "models").iterdir() if p.is_dir()]
    if ending == 1:
        assert caught.value.log_tail == ("Traceback", "ValueError: bad config")


def test_another_run_that_was_faster_keeps_its_files(builds: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be serving them already, so they must not even go for a moment."""
    build = weights.run_step

    def slow(argv, environment, log, on_line):
        build(argv, environment, log, on_line)
        if len(builds) == 1:
            ensure()
            kept.append((Path(location(BUILT, "lock")) / "config.json").stat().st_ino)
        return 0

    kept: list[int] = []
    monkeypatch.setattr(weights, "run_step", slow)
    monkeypatch.setattr(weights.os, "getpid", count().__next__)  # another process each time
    made = ensure()
    assert len(builds) == 2
    assert (Path(made.location) / "config.json").stat().st_ino == kept[0]


def test_an_unknown_builder_gives_the_nearest() -> None:
    with pytest.raises(RecipeError, match="no builder is called 'tiny_gema4'; did you mean tiny_gemma4"):
        builder_path("tiny_gema4")


def test_one_from_the_hub_is_left_to_the_engine() -> None:
    found = ensure(HUB)
    assert found.location == "some/model"
    assert found.facts.files_sha256 == {}
    assert (found.facts.repository, found.facts.revision, found.facts.weights) == ("some/model", "abc", "dummy")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that lies in the repository."""
    folder = tmp_path / "models" / "kept"
    folder.mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"a")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.bin").write_bytes(b"b")
    sums = {"kept/a.bin": b"a", "kept/sub/b.bin": b"b", "kept-too/a.bin": b"other"}
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sums.items()]
    (folder.parent / "SHA256SUMS").write_text("".join(lines))
    monkeypatch.setattr(weights, "PROJECT", tmp_path)
    return folder


IN_REPOSITORY = Checkpoint(repository="own/model", revision="1", folder="models/kept")


def test_one_that_lies_in_the_repository(kept: Path) -> None:
    found = ensure(IN_REPOSITORY)
    assert found.location == str(kept)
    assert list(found.facts.files_sha256) == ["a.bin", "sub/b.bin"]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("kept/a.bin", "b", r"a\.bin: sha256 is \w+, expected"),
        ("kept/sub/b.bin", None, r"sub/b\.bin: sha256 is missing"),
        ("SHA256SUMS", "nonsense\n", "SHA256SUMS cannot be read"),
        ("SHA256SUMS", None, "SHA256SUMS cannot be read"),
        ("SHA256SUMS", "00  other/a.bin\n", "has no entry for kept"),
    ],
)
def test_one_in_the_repository_that_is_damaged(kept: Path, file: str, content: str | None, said: str) -> None:
    path = kept.parent / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(EnvironmentBuildError, match=said) as caught:
        ensure(IN_REPOSITORY)
    assert caught.value.tip
