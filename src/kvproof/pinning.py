"""Compares images/lock.toml with the registries, and writes what they say into it.

A digest is what is run, so what matters is whether it is still there. A tag that has moved says that something newer
has its name. A nightly is another matter: its tag names one commit, so newer ones have other tags.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from . import files
from .console import Console
from .errors import CannotRunError, KvproofError, RecipeError, UsageError, nearest
from .image_lock import Image, read_images
from .paths import IMAGES
from .redact import Redactor
from .references import Reference, parse
from .registry import Manifest, Registry

NIGHTLY = re.compile(r"(?P<stem>(?:[\w.-]+-)?nightly)-(?P<commit>[0-9a-f]{7,40})")
_MAX_NIGHTLIES = 1000
STATES = {
    "same": "as on record", "new": "had no digest", "moved": "the tag has another digest now",
    "vanished": "the digest on record is gone", "untagged": "the tag is gone, the digest on record is not",
    "newer": "a newer nightly is there", "missing": "there is no such tag", "failed": "could not be asked",
}
_WRONG = frozenset({"moved", "vanished"})


@dataclass(frozen=True)
class Row:
    """One image of the lock beside what its registry says.

    Attributes:
        image: as the lock has it.
        state: a key of STATES.
        tag: that would be pinned; another than the lock's for a newer nightly.
        new: what that tag stands for; None when there is none, or it could not be asked.
        created: UTC day on which a nightly was built; None for a release, and when it does not say.
        notes: what else a reader should know.
        error: why it could not be asked.
    """

    name: str
    image: Image
    state: str
    tag: str
    new: Manifest | None = None
    created: str | None = None
    notes: tuple[str, ...] = ()
    error: KvproofError | None = field(default=None, compare=False)

    @property
    def old_digest(self) -> str | None:
        return self.image.index or next(iter(self.image.platforms.values()), None)

    @property
    def pinned(self) -> Image | None:
        """The image with what the registry says; None when it says nothing."""
        if self.new is None:
            return None
        nightly = NIGHTLY.fullmatch(self.tag)
        changes: dict[str, Any] = {
            "tag": self.tag, "index": self.new.digest if self.new.is_index else None, "platforms": self.new.platforms,
            "learned": "registry", "sources": [parse(self.image.repository).host],
            "commit": nightly["commit"] if nightly else self.image.commit,
            "created": self.created or self.image.created,
        }
        if nightly and self.tag != self.image.tag and "vllm" in self.image.contains:
            # The number before the commit is known once the image is run.
            changes["contains"] = self.image.contains | {"vllm": f"0.dev0+g{nightly['commit'][:9]}"}
        return self.image.model_copy(update=changes)

    def as_data(self) -> dict[str, Any]:
        return {
            "name": self.name, "image": f"{self.image.repository}:{self.image.tag}", "state": self.state,
            "tag": self.tag, "old": self.old_digest, "new": self.new.digest if self.new else None,
            "platforms": self.new.platforms if self.new else None, "created": self.created, "notes": list(self.notes),
            "error": Redactor()(self.error.message) if self.error else None,
        }


def chosen(words: Sequence[str], images: Path = IMAGES) -> dict[str, Image]:
    """Images of the lock by name or by REPOSITORY:TAG; all when no word is given.

    Raises:
        UsageError: a word names none.
    """
    known = read_images(images)
    if not words:
        return known
    found: dict[str, Image] = {}
    for word in words:
        if word in known:
            found[word] = known[word]
            continue
        same = {name: image for name, image in known.items() if f"{image.repository}:{image.tag}" == word}
        if not same:
            raise UsageError(f"no image of images/lock.toml is called {word!r}; {nearest(word, known)}")
        found |= same
    return found


def compare(images: dict[str, Image], registry: Registry, console: Console) -> Iterator[Row]:
    """One row per image. A registry that fails makes a row too, so that the others are still seen."""
    for name, image in images.items():
        console.now(f"asking for {image.repository}:{image.tag}")
        try:
            yield _compared(name, image, registry, console)
        except KvproofError as error:
            yield Row(name, image, "failed", image.tag, error=error)


def _compared(name: str, image: Image, registry: Registry, console: Console) -> Row:
    reference = parse(f"{image.repository}:{image.tag}")
    nightly = NIGHTLY.fullmatch(image.tag)
    if nightly:
        return _compared_nightly(name, image, reference, nightly["stem"], registry, console)
    new, row = registry.manifest(reference), Row(name, image, "same", image.tag)
    on_record = _on_record(image)
    if not on_record:
        return _with(row, "new" if new else "missing", new)
    if new is not None and on_record <= {new.digest, *new.platforms.values()}:
        notes = ()
        if image.index is not None and image.index != (new.digest if new.is_index else None):
            notes = (f"the digest on record as the index is {_platform_of(new, image.index)}'s",)
        return _with(row, "same", new, notes)
    gone = _gone(on_record, reference, registry)
    state = "vanished" if gone else "moved" if new else "untagged"
    return _with(row, state, new, tuple(f"{digest} is not there any more" for digest in gone))


def _compared_nightly(name: str, image: Image, reference: Reference, stem: str, registry: Registry,
                      console: Console) -> Row:
    warning = f"{stem}-COMMIT tags are removed after some weeks: copy the image to a registry of your own"
    gone = _gone(_on_record(image), reference, registry)
    tag, new = _newest_nightly(reference, stem, registry, console)
    created = _day(new, reference, registry) if new else None
    row = Row(name, image, "same", tag or image.tag, created=created, notes=(warning,))
    if new is None:
        return _with(row, "vanished" if gone else "untagged" if _on_record(image) else "missing", None, row.notes)
    if gone:
        return _with(row, "vanished", new, (*(f"{digest} is not there any more" for digest in gone), warning))
    same = _on_record(image) <= {new.digest, *new.platforms.values()}
    return _with(row, "new" if not _on_record(image) else "same" if same else "newer", new, row.notes)


def _with(row: Row, state: str, new: Manifest | None, notes: tuple[str, ...] = ()) -> Row:
    return Row(row.name, row.image, state, row.tag, new, row.created, notes)


def _on_record(image: Image) -> set[str]:
    return {*image.platforms.values(), *([image.index] if image.index else [])}


def _gone(digests: Iterable[str], reference: Reference, registry: Registry) -> list[str]:
    return [digest for digest in sorted(digests)
            if registry.digest(Reference(reference.host, reference.path, digest=digest)) is None]


def _platform_of(manifest: Manifest, digest: str) -> str:
    return next((name for name, own in manifest.platforms.items() if own == digest), "one platform")


def _newest_nightly(reference: Reference, stem: str, registry: Registry, console: Console
                    ) -> tuple[str | None, Manifest | None]:
    """The tag of the nightly that was built last, and what it stands for; None and None when there is none.

    Tags are named after commits, so each must be asked for its date.
    """
    tags = [tag for tag in registry.tags(reference) if (m := NIGHTLY.fullmatch(tag)) and m["stem"] == stem]
    if len(tags) > _MAX_NIGHTLIES:
        raise CannotRunError(f"{reference.host}/{reference.path} has {len(tags)} tags {stem}-COMMIT, and each must be "
                             f"asked for its date; expected at most {_MAX_NIGHTLIES}",
                             tip="write the wanted tag into images/lock.toml, with learned = \"unresolved\"")
    best: tuple[datetime, str, Manifest] | None = None
    for number, tag in enumerate(tags, start=1):
        console.now(f"{number} of {len(tags)}: {tag}")
        found = registry.manifest(Reference(reference.host, reference.path, tag))
        created = _created(found, reference, registry) if found else None
        if found and created and (best is None or (created, tag) > best[:2]):
            best = (created, tag, found)
    return (best[1], best[2]) if best else (None, None)


def _created(manifest: Manifest, reference: Reference, registry: Registry) -> datetime | None:
    """When an image was built; of an index, when its image for amd64 was, or else its first."""
    if not manifest.is_index:
        return manifest.created
    digest = manifest.platforms.get("linux/amd64") or next(iter(manifest.platforms.values()), None)
    child = registry.manifest(Reference(reference.host, reference.path, digest=digest)) if digest else None
    return child.created if child else None


def _day(manifest: Manifest, reference: Reference, registry: Registry) -> str | None:
    found = _created(manifest, reference, registry)
    return found.date().isoformat() if found else None


def text(rows: Sequence[Row]) -> str:
    """A line per image, old → new, and what to know of it below."""
    width, wide = (max((len(f(row)) for row in rows), default=0) for f in (lambda r: r.name, lambda r: r.state))
    lines = []
    for row in rows:
        old, new = _short(row.old_digest), _short(row.new.digest) if row.new else "none"
        change = old if old == new else f"{old} → {new}"
        if row.state == "failed":
            change = old
        elif row.tag != row.image.tag:
            change += f"  {row.tag}{f', built {row.created}' if row.created else ''}"
        lines.append(f"{row.name:{width}}  {row.state:{wide}}  {change}")
        lines += [f"{'':{width}}  {note}" for note in row.notes if row.state != "same" or "on record" in note]
        if row.error:
            lines.append(f"{'':{width}}  {Redactor()(row.error.message)}")
    return "\n".join(lines) or "images/lock.toml names no image"


def _short(digest: str | None) -> str:
    return digest[: len("sha256:") + 12] if digest else "none"


def raise_for(rows: Sequence[Row], *, check: bool) -> None:
    """End with an error when something is wrong.

    Args:
        check: whether a moved tag and a vanished digest are errors.

    Raises:
        KvproofError: with --check, a tag has moved or a digest vanished.
        CannotRunError: a registry could not be asked.
    """
    wrong = [row for row in rows if row.state in _WRONG] if check else []
    if wrong:
        raise KvproofError("\n".join(f"{row.name}: {STATES[row.state]}" for row in wrong),
                           tip=f"./inv pin {' '.join(row.name for row in wrong)} --update, then build and prove again")
    failed = [row for row in rows if row.error]
    if failed:
        raise CannotRunError(f"{len(failed)} of {len(rows)} images could not be compared: "
                             + ", ".join(row.name for row in failed), tip=failed[0].error.tip)


def write(rows: Sequence[Row], *, images: Path = IMAGES, today: date | None = None) -> list[Path]:
    """Write what the registries said into lock.toml, and new references into the Dockerfiles that start from them.

    Returns:
        The files that changed.

    Raises:
        RecipeError: the lock is laid out in a way that cannot be edited here.
        KvproofError: a file cannot be written.
    """
    path = images / "lock.toml"
    day = (today or datetime.now(UTC).date()).isoformat()
    lock = path.read_text(encoding="utf-8")
    changed, texts = [], {path: lock}
    for row in rows:
        if row.pinned is None:
            continue
        texts[path] = _edited(texts[path], row.name, row.pinned.model_copy(update={"date": day}), path)
        old, new = row.image.reference, row.pinned.reference
        for dockerfile in sorted(images.glob("*/Dockerfile")):
            content = texts.get(dockerfile) or dockerfile.read_text(encoding="utf-8")
            if old and new and re.search(rf"(?m)^ARG BASE={re.escape(old)}$", content):
                texts[dockerfile] = content.replace(f"ARG BASE={old}\n", f"ARG BASE={new}\n")
    for file, content in texts.items():
        if files.replace(file, content):
            changed.append(file)
    return changed


def _edited(lock: str, name: str, image: Image, path: Path) -> str:
    """The lock's text with one entry changed and everything else, comments included, as it was.

    Raises:
        RecipeError: what comes out is not what was meant, as when a value goes over several lines.
    """
    heads = [f"[{quoted}{part}]" for quoted in (name, f'"{name}"') for part in ("", ".platforms")]
    lines = lock.split("\n")
    start = next((n for n, line in enumerate(lines) if line.strip() in heads[::2]), None)
    if start is not None:
        end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("[")
                    and lines[n].strip() not in heads), len(lines))
        while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
            end -= 1
        lines[start:end] = _block(lines[start:end], heads, image)
    made = "\n".join(lines)
    wanted = {**tomllib.loads(lock), name: _as_toml(image)}
    try:
        right = tomllib.loads(made) == wanted
    except tomllib.TOMLDecodeError:
        right = False
    if not right:
        raise RecipeError(f"{path}: the entry {name} is laid out in a way that cannot be edited here; expected one "
                          "line for each value", tip=f"write it by hand: {_digests(image)}")
    return made


def _block(lines: list[str], heads: list[str], image: Image) -> list[str]:
    """An entry's lines with the image's values, in their places; platforms come last."""
    at = next((n for n in range(1, len(lines)) if lines[n].strip() in heads), len(lines))
    kept, values = lines[:at], _as_toml(image)
    platforms = values.pop("platforms", {})
    for key in ("tag", "index", "contains", "commit", "created", "learned", "date", "sources"):
        kept = [line for line in kept if key in values or not re.match(rf"{key}\s*=", line)]
        if key not in values:
            continue
        new = f"{key} = {_toml(values[key])}"
        place = next((n for n, line in enumerate(kept) if re.match(rf"{key}\s*=", line)), None)
        if place is not None:
            kept[place] = new
        else:
            before = {"index": "tag", "commit": "contains", "created": "commit"}[key]
            place = next(n for n, line in enumerate(kept) if re.match(rf"{before}\s*=", line))
            kept.insert(place + 1, new)
    if not platforms:
        return kept
    head = lines[0].strip()[1:-1]
    return [*kept, f"[{head}.platforms]", *(f'"{platform}" = "{digest}"' for platform, digest in platforms.items())]


def _as_toml(image: Image) -> dict[str, Any]:
    """What a reader of the lock gets: nothing for what is absent."""
    found = image.model_dump(exclude_none=True)
    return {key: value for key, value in found.items() if value or key not in ("platforms", "prepare")}


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{key} = {_toml(own)}" for key, own in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _digests(image: Image) -> str:
    return ", ".join([*([f"index {image.index}"] if image.index else []),
                      *(f"{platform} {digest}" for platform, digest in image.platforms.items())])
