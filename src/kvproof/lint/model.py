"""What was found in a paste, normalised: engines and cache servers that it starts, and where they run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .source import Source, Text
from .tree import Map, Node
from .versions import Known

ENGINES = ("vllm", "sglang", "trtllm")


@dataclass(eq=False)
class Word:
    """One word of a command line.

    Attributes:
        text: as the program gets it.
        start, end: where it is written, quotes included.
        quote: the quotes it is wholly in; empty when it is in none or in several.
        open: whether something in it is only known when the command runs.
        stripped: whether the shell takes the quotes inside of it away.
        node: what stands in its place, where a list of arguments has something that is no text.
    """

    text: Text
    start: int
    end: int
    quote: str = ""
    open: bool = False
    stripped: bool = False
    node: Node | None = None

    @property
    def value(self) -> str:
        return self.text.value


@dataclass(eq=False)
class Flag:
    """One option of a command.

    Attributes:
        name: with dashes between its words, without those in front; what follows a dot is kept as it is.
        value: what is given to it; None when nothing is.
        node: its value, where it is no text but part of a YAML file.
        start, end: where it is written, without its value.
    """

    name: str
    value: Text | None
    start: int
    end: int
    word: Word | None = None
    node: Node | None = None

    @property
    def text(self) -> str | None:
        return self.value.value if self.value is not None else None

    @property
    def at(self) -> int:
        """Where its value is written; its own place when it has none."""
        return self.value.start() if self.value is not None else self.node.start if self.node else self.start


@dataclass(eq=False)
class Setting:
    """One environment variable.

    Attributes:
        value: None when it comes from elsewhere, such as a secret or the shell that starts it.
    """

    name: str
    value: Text | None
    start: int

    @property
    def text(self) -> str | None:
        return self.value.value if self.value is not None else None


@dataclass(eq=False)
class Container:
    """Where a process runs.

    Attributes:
        runtime: docker, compose, kubernetes or helm.
        image: reference with tag or digest, as written; None when it is not in the paste.
        names: by which others reach it over the network.
        network: host, container:NAME, service:NAME, none, or the name of a network; empty for the runtime's own.
        ipc: as for docker's --ipc; empty when not given.
        shm_bytes: size of its /dev/shm; None when not given. shm_at says where.
        shm_shared: whether /dev/shm is the host's.
        memory_bytes: limit of its memory; None when there is none.
        gpus: whether it is given any; None when that cannot be told.
        pod: the same object for containers that share network and IPC.
        partial: whether more may be added to it than the paste shows, as by a chart's templates.
    """

    runtime: str
    start: int
    image: Text | None = None
    image_open: bool = False
    names: set[str] = field(default_factory=set)
    network: str = ""
    ipc: str = ""
    shm_bytes: int | None = None
    shm_at: int | None = None
    shm_shared: bool = False
    memory_bytes: int | None = None
    memory_at: int | None = None
    gpus: bool | None = None
    pod: object = None
    partial: bool = False
    settings_open: bool = False
    """Whether more environment comes from somewhere else, such as an env file."""
    files: dict[str, str] = field(default_factory=dict)
    """Files mounted into it: base name in the container to that of the file in the paste."""


@dataclass(eq=False)
class Launch:
    """One engine or cache server that the paste starts.

    Attributes:
        program: vllm, sglang, trtllm, lmcache-server (multiprocess) or lmcache-remote (lm://).
        start, end: where its command is written.
        model: name or path; None when it is not in the paste.
        settings: environment, by name.
        container: None when it runs on the host.
        open: whether more options may be given than the paste shows.
        shell: whether its options are words of a shell line, so that one can be added behind the last.
        quote: the quotes that the whole command is in, as behind sh -c.
    """

    program: str
    start: int
    end: int
    flags: list[Flag] = field(default_factory=list)
    positionals: list[Word] = field(default_factory=list)
    model: Text | None = None
    settings: dict[str, Setting] = field(default_factory=dict)
    container: Container | None = None
    version: Known | None = None
    open: bool = False
    shell: bool = False
    quote: str = ""

    def flag(self, *names: str) -> Flag | None:
        """The last option of these names, as the programs take it."""
        return next((f for f in reversed(self.flags) if f.name in names), None)

    def dotted(self, name: str) -> list[Flag]:
        """Options that set a part of another one's value, such as kv-transfer-config.kv_role."""
        return [f for f in self.flags if f.name.startswith(name + ".")]

    def setting(self, name: str) -> str | None:
        found = self.settings.get(name)
        return found.text if found else None

    def number(self, *names: str) -> int | None:
        """A whole number given to an option; None when it is not given, or is none."""
        flag = self.flag(*names)
        text = flag.text if flag else None
        return int(text) if text and re.fullmatch(r"\d{1,18}", text) else None

    @property
    def complete(self) -> bool:
        """Whether what is not in the paste is not there."""
        return not self.open and not (self.container is not None and self.container.partial)


@dataclass(eq=False)
class Document:
    """A configuration file of its own kind.

    Attributes:
        kind: lmcache or trtllm-options.
        name: base name of the file; empty when the paste does not say.
    """

    kind: str
    root: Map
    name: str = ""


@dataclass(eq=False)
class Slip:
    """Something that the shell or the reader of a file would trip over.

    Attributes:
        id: key of facts.FACTS.
        edits: start, end and text of what mends it.
    """

    id: str
    start: int
    fields: dict[str, str] = field(default_factory=dict)
    edits: tuple[tuple[int, int, str], ...] = ()


@dataclass(eq=False)
class Paste:
    """All of it."""

    source: Source
    kinds: list[str] = field(default_factory=list)
    """What was recognised, as people call it."""
    launches: list[Launch] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    images: list[Container] = field(default_factory=list)
    slips: list[Slip] = field(default_factory=list)

    def engines(self) -> Iterator[Launch]:
        return (launch for launch in self.launches if launch.program in ENGINES)

    def servers(self, program: str = "lmcache-server") -> list[Launch]:
        return [launch for launch in self.launches if launch.program == program]
