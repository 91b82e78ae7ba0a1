"""Images are named by digest; a lock that says something else is refused with the entry that does."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.errors import RecipeError
from kvproof.image_lock import read_image, read_images
from kvproof.loading import load_recipe, recipe_paths

INDEX, PLATFORM = "sha256:" + "a" * 64, "sha256:" + "b" * 64
GOOD = f"""
[engine]
repository = "registry.example/engine"
tag = "v1"
index = "{INDEX}"
contains = {{ engine = "1.0" }}
learned = "reported"
date = "2026-01-02"
sources = ["a page"]
"""


def write(folder: Path, text: str) -> Path:
    (folder / "lock.toml").write_text(text)
    return folder


def test_the_reference_has_tag_and_digest(tmp_path: Path) -> None:
    assert read_image("engine", write(tmp_path, GOOD)).reference == f"registry.example/engine:v1@{INDEX}"


def test_without_an_index_a_platform_serves(tmp_path: Path) -> None:
    text = GOOD.replace(f'index = "{INDEX}"\n', "") + f'[engine.platforms]\n"linux/amd64" = "{PLATFORM}"\n'
    assert read_image("engine", write(tmp_path, text)).reference == f"registry.example/engine:v1@{PLATFORM}"


def test_without_any_digest_there_is_no_reference(tmp_path: Path) -> None:
    text = GOOD.replace(f'index = "{INDEX}"\n', "").replace('"reported"', '"unresolved"')
    image = read_image("engine", write(tmp_path, text))
    assert image.reference is None
    assert "imagetools inspect registry.example/engine:v1" in image.tip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (f'index = "{INDEX}"', 'index = "latest"', r"lock\.toml: engine\.index: "),
        (f'index = "{INDEX}"\n', "", r"engine: learned is 'unresolved' exactly when there is no digest"),
        ('"reported"', '"unresolved"', r"engine: learned is 'unresolved' exactly when there is no digest"),
        ('"reported"', '"guessed"', r"engine\.learned: "),
        ("sources", "sauces", r"engine\.(sources|sauces): "),
        ('sources = ["a page"]', f'sources = []\n[engine.platforms]\n"linux/amd64" = "{INDEX}"',
         r"engine: a platform's digest is given as the index's"),
        ("[engine]", "[engine", r"not readable as TOML"),
        ("[engine]\n", "engine = 1\n[other]\n", r"lock\.toml: engine: "),
    ],
)
def test_a_damaged_lock(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(RecipeError, match=said) as caught:
        read_images(write(tmp_path, GOOD.replace(old, new)))
    assert caught.value.tip


def test_an_unknown_image_gives_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no image called 'engin'; did you mean engine"):
        read_image("engin", write(tmp_path, GOOD))
    assert read_images(tmp_path / "gone") == {}


def test_every_image_that_a_recipe_here_names_has_a_digest() -> None:
    named = {load_recipe(path).image for path in recipe_paths().values()} - {None}
    assert named
    assert [name for name in named if read_image(name).reference is None] == []
