"""What a run leaves behind: verdicts, measurements, check results, and the record that holds them.

One JSON file per run, one writer (`write`), one reader (`read`, and `read_header` for the matrix).
A missing counter is null, never 0; a ratio over zero is null; unknown is never a pass.
The first key of a file is `header`: all that the matrix needs, so that it need not read the rest.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import EvidenceError
from .redact import Redactor

SCHEMA_VERSION = 1
_HEADER_BYTES = 16 * 1024
_MAX_BYTES = 256 * 1024 * 1024
_HEADER_OPENS = re.compile(r'\s*\{\s*"header"\s*:\s*(?=\{)')
_DECODER = json.JSONDecoder()
# Only a list whose numbers each begin their own line: a line break inside a string is written as an
# escape, so that texts (the recipe, the logs) keep every space they have.
_NUMBERS = re.compile(r"\[((?:\n *(?:-?[0-9][0-9.eE+-]*|null),?)+)\n *\]")


# Fields whose text is a name, a word of a fixed list, a version, a time or a digest. Masking would change what a
# record says when such a word is also somebody's password. All other text is masked, also in fields to come.
_IDENTIFIERS = frozenset({
    "run_id", "recipe", "recipe_digest", "lock_digest", "image_digest", "runtime", "weights", "engine", "connector",
    "engine_version", "connector_version", "cpu", "gpus", "gpu_driver", "started_at", "status", "verdict", "name",
    "unit", "relation", "prompt_sha256", "kind", "kvproof_version", "commit", "lock_file", "python", "versions",
    "repository", "revision", "files_sha256", "sha256", "kernel",
})


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    """Could not be judged."""
    UNSUPPORTED = "unsupported"
    """A known upstream limit, with a link."""
    NOT_MEASURED = "not_measured"


class Record(BaseModel):
    """Base of everything in a file. Unknown keys are kept out when written and ignored when read, so a
    newer file with more facts stays readable."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")


class Measurement(Record):
    name: str
    """What was measured, with the unit last (ttft_cold_s)."""
    value: float | int | str | None
    """None when it could not be read; never 0 instead."""
    unit: str
    """s, tokens, bytes, ratio, nats, count, or text."""
    limit: float | int | None = None
    """Threshold that this value was judged against; None when it is only reported."""
    relation: Literal[">=", "<=", "=="] | None = None
    """How value must relate to limit."""
    source: str = ""
    """Which process and counter said so."""

    def holds(self) -> bool | None:
        """Whether the value keeps its limit; None when there is no limit or no value."""
        if self.limit is None or self.relation is None or not isinstance(self.value, int | float):
            return None
        if not math.isfinite(self.value):  # it is written as null, so it must not be judged as a number
            return None
        if self.relation == ">=":
            return self.value >= self.limit
        return self.value <= self.limit if self.relation == "<=" else self.value == self.limit


class CheckResult(Record):
    name: str
    verdict: Verdict
    required: bool
    reason: str | None = None
    """Why it is not a pass; None for a pass."""
    link: str | None = None
    """Upstream issue or page; required for unsupported."""
    measurements: tuple[Measurement, ...] = ()


class CheckSummary(Record):
    name: str
    verdict: Verdict
    required: bool
    reason: str | None = None
    link: str | None = None


class Hardware(Record):
    cpu: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    """Names as the driver reports them; empty on a host without GPU."""
    gpu_driver: str | None = None


class Header(Record):
    schema_version: int = SCHEMA_VERSION
    run_id: str
    recipe: str
    recipe_digest: str
    lock_digest: str | None
    """sha256 of the environment's lock file; None when an image brought all packages."""
    image_digest: str | None = None
    """Digest of the pinned image in which it ran, or from which its image was built; None without containers."""
    runtime: str
    weights: Literal["real", "nano", "dummy"]
    engine: str
    connector: str
    engine_version: str | None
    """As the engine's process reported it; None when it never did."""
    connector_version: str | None
    hardware: Hardware
    started_at: str
    """UTC, ISO 8601."""
    duration_s: float
    status: Literal["completed", "interrupted", "failed"]
    """failed: the run ended before all its checks ran."""
    verdict: Verdict
    reason: str | None
    """Why the verdict is not a pass."""
    weaker: tuple[str, ...] = ()
    """Options that make the run less than the recipe asks for; such a run proves nothing in the matrix."""
    damage_left_in: str | None = None
    """Set when stored KV was damaged on purpose for the main retrieval; such a run proves nothing."""
    checks: tuple[CheckSummary, ...] = ()
    highlights: dict[str, float | int | str | None] = Field(default_factory=dict)
    """The few numbers a table shows, by measurement name."""


class Sample(Record):
    """One request of one pass."""

    prompt_sha256: str
    """Of the prompt's token ids, as decimal numbers joined by commas."""
    kind: str | None = None
    """Group of the prompt, by which scores are reported apart; None when the dataset has none."""
    prompt_tokens: int
    cached_tokens: int | None
    """Prompt tokens that the engine did not compute, as the response's usage says; None when it does not."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    """Log-probability of each generated token, nats; None where the engine gave none or NaN."""
    ttft_s: float | None
    duration_s: float
    answer: str | None = None
    """What stands after ####, None when nothing does."""
    score: float | None = None
    """1 for the expected answer, 0 otherwise; None when the prompt has no expected answer."""
    error: str | None = None
    """HTTP status and message when the request failed."""


class Pass(Record):
    """The same prompts sent once, with the counters on both sides of it."""

    name: str
    started_at: str
    duration_s: float
    engine_before: dict[str, float]
    engine_after: dict[str, float]
    cache_before: dict[str, float]
    """Counters of the cache server, summed over labels; empty when there is no cache server."""
    cache_after: dict[str, float]
    samples: tuple[Sample, ...]


class Step(Record):
    name: str
    started_at: str
    duration_s: float
    own_s: float
    """Part of it that did not wait for a process or a response."""


class ContainerFacts(Record):
    """The image that containers ran in, as the daemon has it."""

    reference: str
    """The pinned image, or the name of the one built from it."""
    id: str
    """Digest of its configuration, which names its layers."""
    base: str | None
    """Reference with digest that it was built from; None when it was pulled and not changed."""
    labels: dict[str, str]
    """What it says of itself: lock and Dockerfile digests, commit, versions."""
    daemon: str
    """Name and version of what ran the containers."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options that containers were given besides the plan: isolation, and what the user's host profile adds."""


class Environment(Record):
    """State of the code and of what the servers ran in."""

    kvproof_version: str
    commit: str | None
    dirty: bool | None
    """None outside a git checkout."""
    lock_file: str | None
    python: str | None
    """Version of the interpreter that the servers ran on."""
    versions: dict[str, str]
    """As the processes and the environment reported them."""
    container: ContainerFacts | None = None
    """None without containers."""


class ModelFacts(Record):
    repository: str
    revision: str
    weights: str
    files_sha256: dict[str, str]


class DatasetFacts(Record):
    name: str
    sha256: str | None
    """Of the data file; None for prompts that kvproof makes from a seed."""
    seed: int
    samples: int


class HostFacts(Record):
    kernel: str
    memory_available_bytes: int
    shm_bytes: int
    shm_free_bytes: int
    disk_free_bytes: int


class RunRecord(Record):
    header: Header
    recipe_text: str
    plan: dict[str, Any]
    environment: Environment
    model: ModelFacts
    assistant: ModelFacts | None = None
    """The draft model; None without speculative decoding."""
    dataset: DatasetFacts
    host: HostFacts
    options: dict[str, Any]
    steps: tuple[Step, ...]
    passes: tuple[Pass, ...]
    checks: tuple[CheckResult, ...]
    logs: dict[str, tuple[str, ...]]
    """Last lines of each log, secrets masked."""
    own_share_ratio: float | None
    """Part of the run's duration in which kvproof neither waited for a process nor for a response."""


def overall(
    results: tuple[CheckResult, ...], required: list[str], controls: frozenset[str]
) -> tuple[Verdict, str | None]:
    """The verdict of a run, from its checks alone.

    A negative control that stayed green (verdict fail of a control) voids everything: error. Otherwise a
    required check that failed makes it fail, one that is not a pass or is missing makes it error. Of a
    check that is there twice, every result counts.

    Returns:
        The verdict, and why it is not a pass (None for a pass).
    """
    green = [r for r in results if r.name in controls and r.verdict is Verdict.FAIL]
    if green:
        return Verdict.ERROR, f"{green[0].name}: {green[0].reason}; the proof is void"
    judged = [r for name in dict.fromkeys(required) for r in results if r.name == name]
    failed = [r for r in judged if r.verdict is Verdict.FAIL]
    if failed:
        return Verdict.FAIL, "; ".join(f"{r.name}: {r.reason}" for r in failed)
    present = {r.name for r in judged}
    missing = [f"{name}: did not run" for name in required if name not in present]
    unsure = [r for r in judged if r.verdict is not Verdict.PASS]
    reasons = [f"{r.name}: {r.reason}" for r in unsure] + missing
    if unsure and not missing and all(r.verdict is Verdict.UNSUPPORTED for r in unsure):
        return Verdict.UNSUPPORTED, "; ".join(reasons)
    if reasons:
        return Verdict.ERROR, "; ".join(reasons)
    if not required:
        return Verdict.ERROR, "the recipe requires no check"
    return Verdict.PASS, None


def summaries(results: tuple[CheckResult, ...]) -> tuple[CheckSummary, ...]:
    """What the header says of each check."""
    return tuple(
        CheckSummary(name=r.name, verdict=r.verdict, required=r.required, reason=r.reason, link=r.link) for r in results
    )


def to_json(record: RunRecord, redact: Redactor | None = None) -> str:
    """A record as the text of its file: secrets masked, but never in what identifies or judges the run."""
    content = _masked(record, record.model_dump(mode="json"), redact or Redactor())
    text = json.dumps(_without_nan(content), ensure_ascii=False, separators=(",", ": "), indent=1)
    return _compact_numbers(text) + "\n"


def _masked(record: Record, dumped: dict[str, Any], redact: Redactor) -> dict[str, Any]:
    masked: dict[str, Any] = {}
    for name, value in dumped.items():
        field = getattr(record, name)
        if isinstance(field, Record):
            masked[name] = _masked(field, value, redact)
        elif isinstance(field, tuple) and field and isinstance(field[0], Record):
            masked[name] = [_masked(part, content, redact) for part, content in zip(field, value, strict=True)]
        else:
            masked[name] = value if name in _IDENTIFIERS else redact.tree(value)
    return masked


def write(record: RunRecord, folder: Path, redact: Redactor | None = None) -> Path:
    """Write a record as `folder/RECIPE/RUN_ID.json`, whole or not at all.

    Raises:
        EvidenceError: the folder cannot be written; no half file is left behind.
    """
    target = folder / record.header.recipe / f"{record.header.run_id}.json"
    text = to_json(record, redact)
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", suffix=".part", delete=False) as file:
            temporary = Path(file.name)
            file.write(text.encode(errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise EvidenceError(
            f"evidence could not be written to {target}: {error.strerror or error}",
            tip="free space or pass --evidence-dir DIR; the record is still in the run folder",
        ) from None
    finally:  # also when it is interrupted; once renamed there is nothing left to remove
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return target


def _compact_numbers(text: str) -> str:
    """Put lists of plain numbers on one line each: a record stays readable and small."""
    return _NUMBERS.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_nan(v) for v in value]
    return value


def require_regular(path: Path) -> None:
    """Refuse what is neither a file nor a folder: reading a pipe waits for ever, and a device never ends.

    Raises:
        OSError: it is one of those, or it is not there.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read(path: Path) -> RunRecord:
    """Read a whole record.

    Raises:
        EvidenceError: not a complete record; the file and the reason are named.
    """
    try:
        require_regular(path)
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise EvidenceError(
                f"{path}: larger than any evidence file, which has at most {_MAX_BYTES} bytes", tip="remove the file"
            )
        return RunRecord.model_validate_json(data)
    except OSError as error:
        raise EvidenceError(
            f"{path}: cannot be read: {error.strerror or error}", tip="check that the file may be read"
        ) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"]) or "the file"
        raise EvidenceError(
            f"{path}: not a complete evidence file: {where}: {first['msg']}",
            tip="run the recipe again, or remove the file",
        ) from None


def read_header(path: Path) -> Header:
    """Read only the first key of a record.

    The file must still end as a record does, with the outermost brace on a line of its own. One that does
    not, or whose header is not where it is expected, is read as a whole, and refused if that fails.

    Raises:
        EvidenceError: as `read`; a half-written file is named as such.
    """
    try:
        require_regular(path)
        with path.open("rb", buffering=0) as file:
            head = file.read(_HEADER_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 16))
            end = file.read().rstrip()
    except OSError as error:
        raise EvidenceError(
            f"{path}: cannot be read: {error.strerror or error}", tip="check that the file may be read"
        ) from None
    if not end.endswith(b"}"):
        raise EvidenceError(
            f"{path}: half-written: it does not end as an evidence file does",
            tip="run the recipe again, or remove the file",
        )
    text = head.decode("utf-8", errors="replace")
    opens = _HEADER_OPENS.match(text)
    if opens is None or not end.endswith(b"\n}"):
        return read(path).header
    try:
        return Header.model_validate(_DECODER.raw_decode(text, opens.end())[0])
    except (ValueError, RecursionError):  # pydantic's ValidationError is a ValueError
        return read(path).header
