"""What a recipe says: a strict, frozen model, and its digest.

A recipe is one YAML file `recipes/NAME.yaml`. Unknown keys are refused everywhere, so a misspelled
key can never be ignored. `loading.py` reads the files; this module only knows the content.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import Annotated, Literal, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""What can stand on a command line or in an environment: anything without a NUL."""
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Feature = Literal["base", "mtp", "cachegen", "fp8", "cacheblend", "native", "aesgcm"]
FEATURES: tuple[str, ...] = get_args(Feature)
"""In the order of the matrix."""
Argument = Text | int | float | bool | list[Text]
"""A flag's value: true is a bare flag, a list is passed as several words."""



def _bounds(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("expected version bounds such as '>=0.21,<0.23'") from None
    return text


def _version(text: str) -> str:
    try:
        if text == text.strip() and Version(text):
            return text
    except InvalidVersion:
        pass
    raise ValueError("expected a version such as 0.32.0 or 1.3.0rc20")


def _line(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    if any(unicodedata.category(character) in ("Cc", "Cs", "Cf") for character in text):
        raise ValueError("expected text on one line, without control characters")
    return text


def _no_page(text: str) -> str:
    if text == "index":
        raise ValueError("index is the name of the list of all recipes")
    return text


Bounds = Annotated[str, AfterValidator(_bounds)]
"""Versions that something holds for, as PEP 440 specifiers."""
VersionNumber = Annotated[str, AfterValidator(_version)]
Line = Annotated[str, AfterValidator(_line)]
"""Text for people, on one line."""
Link = Annotated[str, StringConstraints(pattern=r"^https?://[^\s<>()\[\]\"'`\\|]+$")]

GIB = 1024**3
PROOF = ("smoke", "noise-floor", "store", "retrieval", "comparison", "control-drop", "control-damage")
"""Checks without which nothing is proven, whatever else a recipe requires."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelBuild(Strict):
    """Weights that kvproof makes itself, inside the locked environment."""

    builder: Name = Field(description="module under kvproof.builders that makes the checkpoint")
    seed: int = Field(description="seed of every random number in the checkpoint")
    config: dict[str, int | float | bool | str | list[str]] = Field(
        default_factory=dict, description="arguments of the builder, named as in the model's config.json"
    )


class Checkpoint(Strict):
    """Where a checkpoint comes from: the hub (neither folder nor build), this repository, or a builder."""

    repository: str = Field(description="hub repository, or the name of a checkpoint that kvproof makes")
    revision: str = Field(min_length=1, description="commit of the repository, or version of our own checkpoint")
    folder: str | None = Field(
        default=None, pattern=r"^models/[A-Za-z0-9._/-]+$",
        description="checkpoint kept in this repository, listed in models/SHA256SUMS; null when it is not",
    )
    build: ModelBuild | None = Field(default=None, description="how to make it; null when it is not made here")

    @model_validator(mode="after")
    def _one_source(self) -> Checkpoint:
        if self.folder is not None and self.build is not None:
            raise ValueError("folder and build exclude each other: a checkpoint is kept here or made here")
        return self


class Model(Checkpoint):
    weights: Literal["real", "nano", "dummy"] = Field(
        description="real: published weights; nano: a small trained Gemma 4 of our own; dummy: random weights"
    )
    architecture: str = Field(description="class named in config.json under architectures")
    served_name: str = Field(min_length=1, description="model name that clients use")


class Speculative(Strict):
    """Speculative decoding: a draft model proposes tokens, the target accepts or refuses them."""

    method: Literal["mtp"] = Field(description="mtp: Gemma 4's multi-token-prediction assistant")
    num_speculative_tokens: int = Field(ge=1, le=8, description="tokens that one draft proposes")
    assistant: Checkpoint


class Engine(Strict):
    name: Name = Field(description="engine adapter, a file in kvproof/engines")
    version: VersionNumber = Field(description="version the engine itself must report")
    arguments: dict[Name, Argument] = Field(default_factory=dict, description="flags without the leading dashes")
    environment: dict[VariableName, Text] = Field(
        default_factory=dict, description="environment of the engine's process"
    )
    ready_timeout_s: int = Field(default=600, gt=0, description="longest wait for its health endpoint, seconds")
    request_timeout_s: int = Field(default=120, gt=0, description="longest wait for one complete answer, seconds")


class Connector(Strict):
    name: Name = Field(description="connector adapter, a file in kvproof/connectors")
    version: VersionNumber | None = Field(default=None, description="version the cache server or package must report")
    arguments: dict[Name, Argument] = Field(default_factory=dict, description="flags of the cache server")
    extra_config: dict[Text, Text | int | float | bool] = Field(
        default_factory=dict, description="kv_connector_extra_config of the engine"
    )
    environment: dict[VariableName, Text] = Field(
        default_factory=dict, description="environment of the cache server"
    )
    second_tier: Literal["fs"] | None = Field(
        default=None, description="second tier of the cache server: fs keeps stored KV in files of the run"
    )
    codec: Literal["fp8"] | None = Field(
        default=None, description="how the second tier encodes KV (fp8 loses precision); null keeps the bytes"
    )
    ready_timeout_s: int = Field(default=120, gt=0, description="longest wait for its health endpoint, seconds")

    @model_validator(mode="after")
    def _codec_has_a_tier(self) -> Connector:
        if self.codec is not None and self.second_tier is None:
            raise ValueError(f"codec {self.codec} encodes what the second tier keeps, and there is no second_tier")
        return self


class Hardware(Strict):
    """What the recipe needs; a host with less is refused before anything starts."""

    gpus: int = Field(ge=0)
    gpu_memory_gib: float | None = Field(default=None, gt=0, description="per GPU; null when no GPU is needed")
    memory_gib: float = Field(gt=0, description="host memory that must be available")
    shm_gib: float = Field(ge=0, description="free space in /dev/shm")
    disk_gib: float = Field(gt=0, description="free space in the cache folder, after installs")


class Prompts(Strict):
    """Which prompts the proof sends.

    A prompt is cut to `chunks * chunk_tokens + remainder_tokens` tokens, so that the engine's own prefix
    cache and the connector divide the same prefix and an exact comparison is fair.
    """

    dataset: Literal["word-problems", "nano", "gsm8k"] = Field(
        default="word-problems",
        description="word-problems: made from the seed; nano: what our trained models were taught; gsm8k: fetched",
    )
    samples: int = Field(default=8, ge=1, le=100_000)
    seed: int = 0
    chunk_tokens: int = Field(default=256, ge=1, description="connector's chunk, a multiple of the engine's block")
    min_chunks: int = Field(default=2, ge=2, description="shorter prompts are not stored")
    max_chunks: int = Field(default=6, ge=2, le=4096)
    remainder_tokens: int = Field(default=40, ge=1, description="computed anew on every pass")
    output_tokens: int = Field(default=24, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> Prompts:
        if self.max_chunks < self.min_chunks:
            raise ValueError(f"max_chunks {self.max_chunks} is below min_chunks {self.min_chunks}")
        if self.remainder_tokens >= self.chunk_tokens:
            raise ValueError(
                f"remainder_tokens {self.remainder_tokens} must be below chunk_tokens {self.chunk_tokens}: "
                "a longer one is another whole chunk"
            )
        return self


class Latency(Strict):
    lengths_chunks: list[Annotated[int, Field(ge=1, le=4096)]] = Field(
        default=[4, 8], min_length=1, description="prompt lengths, in chunks"
    )
    repeats: int = Field(default=5, ge=3, le=1000, description="prompts per length and pass")
    min_speedup_ratio: float = Field(
        default=1.0, gt=0, description="TTFT cold over warm, medians, at the longest length, at least this"
    )


class Overhead(Strict):
    baseline: Literal["beside", "off"] = Field(
        default="off", description="beside: a second engine without connector runs at the same time; off: not measured"
    )
    pairs: int = Field(default=5, ge=3, le=1000, description="interleaved pairs of cold prompts")
    length_chunks: int = Field(default=4, ge=1, le=4096)
    max_ratio: float = Field(default=1.15, gt=1, le=10, description="TTFT of a miss over TTFT without, fastest of each")


class Acceptance(Strict):
    """Limits of the speculative check. Acceptance is accepted over drafted tokens; the mean acceptance length
    counts the target's own token too, so it is 1 when nothing is accepted."""

    min_ratio: float = Field(default=0.5, ge=0, le=1, description="least acceptance, computed and retrieved")
    max_difference: float = Field(default=0.02, ge=0, description="retrieved against computed, absolute")
    min_length_share: float = Field(
        default=0.95, gt=0, le=1, description="mean acceptance length retrieved over computed, at least"
    )


class Thresholds(Strict):
    """Limits of the checks; every one can turn its check red."""

    min_external_hit_ratio: float = Field(default=0.9, ge=0.5, le=1, description="of the cacheable prompt tokens")
    max_floor_logprob_drift: float = Field(
        default=0.05, ge=0, le=0.5,
        description="compute against compute, largest absolute difference of a log-probability while the tokens "
        "agree; above it the engine is too noisy for any comparison",
    )
    max_floor_disagreement_ratio: float = Field(
        default=0.25, ge=0, le=0.5, description="share of prompts whose tokens differ between two computations"
    )
    latency: Latency = Latency()
    overhead: Overhead = Overhead()
    acceptance: Acceptance = Acceptance()


class Checks(Strict):
    required: list[Name] = Field(description="checks that must pass for a proof")
    reported: list[Name] = Field(default_factory=list, description="checks that are run but do not decide the verdict")
    thresholds: Thresholds = Thresholds()

    @model_validator(mode="after")
    def _is_a_proof(self) -> Checks:
        missing = [name for name in PROOF if name not in self.required]
        if missing:
            raise ValueError(f"required leaves out {', '.join(missing)}; without them a pass would prove nothing")
        both = sorted(set(self.required) & set(self.reported))
        if both:
            raise ValueError(f"{both[0]} is both required and reported")
        named = [*self.required, *self.reported]
        if "overhead" in named and self.thresholds.overhead.baseline == "off":
            raise ValueError("overhead needs thresholds.overhead.baseline: beside, an engine without connector")
        return self


class Claim(Strict):
    """What an upstream page says; shown beside evidence, never taken as evidence."""

    says: Literal["validated", "not validated", "supported", "not supported"]
    text: Line
    source: Line = Field(description="page or thread that says so")
    date: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$", description="when it was read")
    numbers: dict[Name, float] = Field(
        default_factory=dict, description="figures it gives, by the name of the measurement they compare with"
    )


class Caveat(Strict):
    text: Line
    reason: Line
    versions: Bounds | None = Field(default=None, description="engine versions; null when it holds for all")
    link: Link | None = None


class Versioned(Strict):
    """What only some versions of the engine need; the plan takes it in when the engine's version lies within."""

    versions: Bounds
    engine_arguments: dict[Name, Argument] = Field(default_factory=dict)
    extra_config: dict[Text, Text | int | float | bool] = Field(default_factory=dict)
    shm_gib: float | None = Field(default=None, ge=0, description="free space in /dev/shm that these versions need")
    reason: Line
    link: Link | None = None


_NOT_PINNED = {"aliases", "title", "claims", "caveats", "stands_for"}


class Recipe(Strict):
    name: Annotated[Name, AfterValidator(_no_page)]
    aliases: list[Name] = Field(default_factory=list, description="other names that commands take for it")
    title: Line
    feature: Feature = "base"
    model: Model
    speculative: Speculative | None = Field(default=None, description="null: every token is the target's own")
    engine: Engine
    connector: Connector
    environment: Name | None = Field(default=None, description="locked environment, a folder under images/")
    image: Name | None = Field(default=None, description="container image, an entry of images/lock.toml")
    hardware: Hardware
    prompts: Prompts = Prompts()
    checks: Checks
    claims: list[Claim] = Field(default_factory=list)
    caveats: list[Caveat] = Field(default_factory=list)
    versioned: list[Versioned] | None = Field(default=None, description="what only some versions of the engine need")
    stands_for: Name | None = Field(
        default=None, description="recipe on other hardware whose path this one proves; null when there is none"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.environment is None and self.image is None:
            raise ValueError("neither environment nor image is given: nothing says where the engine comes from")
        if self.speculative is not None and "speculative" not in self.checks.required:
            raise ValueError("checks.required leaves out speculative: accuracy alone does not show a collapsed draft")
        if self.speculative is None and "speculative" in (*self.checks.required, *self.checks.reported):
            raise ValueError("the check speculative needs the key speculative, which names the draft model")
        return self

    def digest(self) -> str:
        """sha256 of everything that decides what a run does and how it is judged.

        Texts, aliases and claims are left out: correcting them does not make evidence stale. So is what is null: a
        field that recipes gain later does not touch those that do not use it.
        """
        content = self.model_dump(mode="json", exclude=_NOT_PINNED, exclude_none=True)
        canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def applies(self, bounds: str | None) -> bool:
        """Whether version bounds hold for the engine that the recipe pins; None holds for all."""
        return bounds is None or SpecifierSet(bounds).contains(self.engine.version, prereleases=True)

    def resolved(self) -> Recipe:
        """The recipe with what its engine's version needs taken in; what it says itself comes first."""
        engine, connector, hardware = self.engine, self.connector, self.hardware
        for part in self.versioned or ():
            if not self.applies(part.versions):
                continue
            engine = engine.model_copy(update={"arguments": {**part.engine_arguments, **engine.arguments}})
            connector = connector.model_copy(update={"extra_config": {**part.extra_config, **connector.extra_config}})
            hardware = hardware.model_copy(update={"shm_gib": max(hardware.shm_gib, part.shm_gib or 0)})
        return self.model_copy(update={"engine": engine, "connector": connector, "hardware": hardware})
