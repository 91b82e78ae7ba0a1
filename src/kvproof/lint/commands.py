"""From shell text to launches: statements, containers, scripts within quotes, files that a script writes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import docker, programs, shell
from .model import Container, Launch, Paste, Setting, Slip, Word
from .shell import Heredoc, Statement
from .source import Text

_MAX_NESTING = 4
_SCRIPT_FLAG = re.compile(r"-[a-z]*c")
_SHELLS = {"sh", "bash", "zsh", "dash", "ash", "ssh", "tmux", "screen"}
_WRAPPERS = {"env", "sudo", "exec", "nohup", "time", "numactl", "srun", "mpirun", "torchrun", "uv", "uvx", "poetry",
             "run", "conda", "stdbuf", "nice", "taskset", "setsid", "start", "timeout", "nsys", "ncu",
             "proxychains", "then"}
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")


class Reader:
    """Collects into a paste what its commands start.

    Args:
        paste: what is found is added to it.
    """

    def __init__(self, paste: Paste):
        self.paste = paste
        self.files: list[tuple[str, Text]] = []
        """Files that are written by heredocs: name and content."""
        self._exported: dict[str, Setting] = {}
        self._slips: list[Slip] = []

    def script(self, text: Text, *, container: Container | None = None, settings: dict[str, Setting] | None = None,
               argv_after: Sequence[Word] = (), depth: int = 0, quote: str = "") -> list[Launch]:
        """The launches of a shell text, in order.

        Args:
            container: where it runs.
            settings: its environment.
            argv_after: words that follow a script, which it calls "$@".
            quote: the quotes that it is in.
        """
        slips: list[Slip] = []
        variables: dict[str, Text] = {}
        found: list[Launch] = []
        statements = shell.split(text, variables=variables, slips=slips)
        for statement in statements:
            if found and _is_lost_part(statement) and self._follows(found[-1], statement):
                self._join(found[-1], statement)
                continue
            made = self._statement(statement, container, settings or {}, argv_after, depth)
            self.files += [(h.file.rsplit("/", 1)[-1], h.body) for h in statement.heredocs if _is_file(h)]
            for launch in made:
                launch.quote = launch.quote or quote
            found += made
        self._keep_slips(slips, found)
        return found

    def argv(self, words: Sequence[Word], *, container: Container | None = None,
             settings: dict[str, Setting] | None = None, default: str = "", depth: int = 0) -> list[Launch]:
        """The launches of words that no shell has split.

        Args:
            default: program that the words are options of, when they name none.
        """
        return self._words(list(words), container, settings or {}, default, depth, is_shell=False)

    # --- statements ------------------------------------------------------------------------------

    def _statement(self, statement: Statement, container: Container | None, settings: dict[str, Setting],
                   argv_after: Sequence[Word], depth: int) -> list[Launch]:
        words = statement.words
        if words and words[0].value in ("export", "declare", "set", "setx") and len(words) > 1:
            for word in words[1:]:
                found = _ASSIGNMENT.match(word.value)
                if found:
                    value = word.text[found.end():]
                    self._exported[found[1]] = Setting(found[1], value, word.start)
            return []
        own = {**self._exported, **settings,
               **{name: Setting(name, w.text, w.start) for name, w in statement.assignments.items()}}
        if [w.value for w in words] == ["$@"]:  # behind exec, which is left out
            words = list(argv_after)
        run = docker.find(words)
        if run is not None:
            start = min(statement.start or run.start, run.start)
            made = self.container(run.container, run.settings, run.entrypoint, run.words, depth=depth)
            for launch in made:
                launch.start, launch.end = start, max(launch.end, run.end)
            self.paste.images.append(run.container)
            return made
        return self._words(words, container, own, "", depth, is_shell=True, start=statement.start)

    def container(self, container: Container, settings: dict[str, Setting], entrypoint: Word | None,
                  words: Sequence[Word], *, depth: int = 0, is_shell: bool = True) -> list[Launch]:
        """The launches in a container: its command, or its image's own program with the words as options."""
        image = docker.image_of(container)
        default = ""
        if entrypoint is not None:
            words = [entrypoint, *words]
        elif image is not None and image.entry:
            default = image.program
        elif image is not None and image.lmcache and words and words[0].value.startswith("-"):
            default = "lmcache-server"
        elif words and words[0].value.startswith("-") and (image is None or image.program in ("", "vllm")):
            default = "vllm" if any(_looks_like_vllm(w.value) for w in words) else ""
        return self._words(list(words), container, settings, default, depth, is_shell=is_shell)

    def _words(self, words: list[Word], container: Container | None, settings: dict[str, Setting], default: str,
               depth: int, *, is_shell: bool, start: int | None = None) -> list[Launch]:
        script = self._script_in(words)
        if script is not None and depth < _MAX_NESTING:
            at, after = script
            found = self.script(words[at].text, container=container, settings=settings, depth=depth + 1,
                                argv_after=words[after:], quote=words[at].quote or '"')
            if found or not default:
                return found
        program = programs.find(words)
        if program is None:
            if default:
                launch = programs.read(default, words, words[0].start if words else container.start if container
                                       else 0, shell=is_shell)
                return [self._placed(launch, container, settings)]
            if words and words[0].value.startswith("--") and any(_looks_like_vllm(w.value) for w in words):
                launch = programs.read("vllm", words, words[0].start, shell=is_shell)
                given = launch.flag("model")
                launch.model = given.value if given is not None else None
                launch.open = launch.open or given is None
                return [self._placed(launch, container, settings)]
            return []
        before = words[:program.first]
        rest = words[program.rest:]
        if is_shell and program.first and not _may_precede(before) and not any(w.value.startswith("--") for w in rest):
            return []  # prose that names a command
        own = dict(settings)
        for word in before:
            found = _ASSIGNMENT.match(word.value)
            if found:
                own[found[1]] = Setting(found[1], word.text[found.end():], word.start)
        launch = programs.read(program.program, rest, words[0].start if start is None else start, shell=is_shell)
        launch.end = max(launch.end, words[-1].end)
        return [self._placed(launch, container, own)]

    def _placed(self, launch: Launch, container: Container | None, settings: dict[str, Setting]) -> Launch:
        launch.container, launch.settings = container, settings
        self.paste.launches.append(launch)
        return launch

    def _script_in(self, words: Sequence[Word]) -> tuple[int, int] | None:
        """Index of a word that is a script, and of the first of the script's own words."""
        for n in range(1, len(words)):
            before = words[n - 1].value
            if _SCRIPT_FLAG.fullmatch(before) and any(w.value.rsplit("/", 1)[-1] in _SHELLS for w in words[:n - 1]):
                return n, n + 2
        first = words[0].value.rsplit("/", 1)[-1] if words else ""
        if first in ("ssh", "tmux", "screen") and len(words) > 2 and " " in words[-1].value:
            return len(words) - 1, len(words)
        return None

    # --- what a shell trips over -----------------------------------------------------------------

    def _follows(self, launch: Launch, statement: Statement) -> bool:
        """Whether only a line's end stands between the two."""
        return not self.paste.source.text[launch.end:statement.start].strip("\n \t\\") and \
            self.paste.source.text.count("\n", launch.end, statement.start) == 1

    def _join(self, launch: Launch, statement: Statement) -> None:
        """A line of options that the command above it lost, for want of a backslash."""
        end = launch.end
        more = programs.read(launch.program, statement.words, statement.start)
        launch.flags += more.flags
        launch.end = max(launch.end, more.end)
        self.paste.slips.append(Slip("continuation-missing", statement.start, {"seen": statement.words[0].value},
                                     ((end, end, " \\"),)))

    def _keep_slips(self, slips: Sequence[Slip], launches: Sequence[Launch]) -> None:
        """Slips in the commands that matter; prose has all sorts of quotes and dashes."""
        for slip in slips:
            if any(launch.start <= slip.start <= launch.end for launch in launches):
                self.paste.slips.append(slip)


def _is_file(heredoc: Heredoc) -> bool:
    return bool(heredoc.body.value.strip())


def _may_precede(words: Sequence[Word]) -> bool:
    """Whether words may stand before a program on a command line."""
    return any(w.value == "env" for w in words) or all(
        _ASSIGNMENT.match(w.value) or w.value.startswith("-") or w.open or w.value.rsplit("/", 1)[-1] in _WRAPPERS
        for w in words)


def _is_lost_part(statement: Statement) -> bool:
    return bool(statement.words) and bool(re.match(r"--[A-Za-z]", statement.words[0].value))


def _looks_like_vllm(word: str) -> bool:
    return re.match(r"--(?:kv[-_]transfer[-_]config|kv[-_]offloading|speculative[-_]config|cpu[-_]offload[-_]gb|"
                    r"swap[-_]space|tensor[-_]parallel[-_]size|max[-_]model[-_]len|served[-_]model[-_]name|"
                    r"gpu[-_]memory[-_]utilization|model\b|attention[-_]backend)", word) is not None
