"""The command line: invoke's program over tasks.py, and the one place where errors become text.

`./inv` runs this module. Plain `invoke` runs the same tasks; decorated with `task_errors` they report
their errors in the same way. Only what invoke finds before a task starts (a mistyped name or option)
is then invoke's own: its words, and exit code 1 instead of 2.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import functools
import inspect
import json
import os
import re
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar

from invoke import Argument, Collection, Config, Exit, FilesystemLoader, Program, UnexpectedExit
from invoke.exceptions import AmbiguousEnvVar, ParseError, UncastableEnvVar, UnknownFileType
from invoke.parser import Parser, ParserContext

from . import __version__
from .errors import CannotRunError, KvproofError, UsageError, nearest
from .paths import PROJECT
from .redact import Redactor

_SHOWN_OPTIONS = ("--help", "--list", "--version")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS)
"""What a name or a folder that the user gave is to blame for."""
_NUMBERS = {int: "a whole number", float: "a number"}
_Body = TypeVar("_Body", bound=Callable[..., Any])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the tasks that the arguments name, and leave with their exit code.

    Args:
        argv: the program's name and its arguments; the process's own when None.
    """
    Inv().run(None if argv is None else list(argv))


class Inv(Program):
    """invoke's program with kvproof's tasks, error texts and exit codes.

    Args:
        tasks: what it can run; the project's tasks.py when None, from whatever folder it is called.
    """

    def __init__(self, tasks: Collection | None = None):
        super().__init__(version=__version__, namespace=tasks, name="inv", binary="inv", binary_names=["inv"])

    def run(self, argv: list[str] | None = None, exit: bool = True) -> None:
        """The steps of invoke's own `run`, whose handling of errors cannot be replaced from outside."""
        with report_errors():
            try:
                self.create_config()
                if self.namespace is None:
                    self.namespace = _project_tasks(self.config)
                self.parse_core(argv)
                self.parse_collection()
                self.parse_tasks()
                self.parse_cleanup()
                self.update_config()
            except ParseError as error:
                raise UsageError(self._explain(error)) from None
            except (AmbiguousEnvVar, UncastableEnvVar, UnknownFileType) as error:
                raise UsageError(f"invoke's configuration: {error}") from None
            self.execute()

    def normalize_argv(self, argv: list[str] | None) -> None:
        super().normalize_argv(argv)
        words = self.argv[1:]
        words = words[: words.index("--")] if "--" in words else words
        named = [word for word in words if word in self.namespace.task_names]
        if named and not {"--help", "-h"}.isdisjoint(words):
            # As in `inv recipe --help`, which invoke takes for a recipe of that name.
            self.argv = [self.argv[0], "--help", named[0]]
        elif named:
            self.argv = _with_flag(self.argv, named[0], self.namespace[named[0]].optional)
            self.argv = _with_flags(self.argv, named[0], self.namespace[named[0]].iterable)

    def parse_core(self, argv: list[str] | None) -> None:
        # invoke switches bytecode files off, so every start would compile kvproof anew.
        before = sys.dont_write_bytecode
        super().parse_core(argv)
        sys.dont_write_bytecode = before

    def core_args(self) -> list[Argument]:
        arguments = [_checked(argument) for argument in super().core_args()]
        for argument in arguments:
            if argument.name == "list":
                # There are no groups of tasks to list, so a word after it is not its value.
                argument.kind, argument.optional, argument.help = bool, False, "List the tasks."
            if argument.name == "help":
                argument.help = "Show this, or the options of a task."
        return arguments

    def _make_parser(self) -> Parser:
        parser = super()._make_parser()
        for context in parser.contexts.values():
            for argument in context.args.values():
                _checked(argument).context = context
        return parser

    def no_tasks_given(self) -> None:
        self.list_tasks()
        raise Exit

    def print_help(self) -> None:
        """Tasks first; of invoke's own options only those that matter here."""
        print("Usage: inv TASK [--options]\n")
        self.list_tasks()
        print("Options:\n")
        self.print_columns([self.initial_context.help_for(option) for option in _SHOWN_OPTIONS])

    def print_task_help(self, name: str) -> None:
        context = self.parser.contexts[name]
        print(f"Usage: inv {_usage(context)} [--options]\n")
        print(inspect.getdoc(self.collection[name]) or "", end="\n\n")
        options = context.help_tuples()
        if options:
            print("Options:\n")
            self.print_columns(options)

    def task_list_opener(self, extra: str = "") -> str:
        return "Tasks"

    def _explain(self, error: ParseError) -> str:
        """One line: what of the arguments was not understood, and the nearest that would be."""
        said, context = str(error), error.context
        task = f"{context.name}: " if context is not None and context.name else ""
        unknown = re.fullmatch(r"No idea what (.+) is!", said, re.DOTALL)
        if unknown:
            return self._explain_word(_unquoted(unknown[1]), context, task)
        if context is not None and "required positional" in said:
            wanted = " ".join(_shouted(a) for a in context.missing_positional_args)
            return f"{task}{wanted} is missing; usage: inv {_usage(context)} [--options]"
        flag = re.match(r"Flag <\w+: ([\w-]+).* needed value", said)
        if flag:
            return f"{task}--{flag[1].replace('_', '-')} needs a value"
        return f"{task}{said}"

    def _explain_word(self, word: str, context: ParserContext | None, task: str) -> str:
        if word.startswith("-"):
            own = [*context.flags, *context.inverse_flags] if context is not None and task else []
            known = {option for option in (*own, *_SHOWN_OPTIONS) if option.startswith("--")}
            return f"{task}no option is called {word}; {nearest(word, known)}"
        misused = _misused_option(self.argv[1:], context, word)
        if misused:
            return f"{task}{misused}"
        after = f" (inv {_usage(context)} takes no further word)" if task else ""
        return f"no task is called {word!r}{after}; {nearest(word, self.collection.task_names)}"


@contextlib.contextmanager
def report_errors() -> Iterator[None]:
    """Turn whatever ends the block into text on stderr and an exit code.

    An expected error shows the end of the log that explains it, then itself, then the next step. Only a
    defect keeps its traceback. Secrets are masked in all of it.

    Raises:
        SystemExit: the error's own code (see `errors`); 130 after Ctrl-C; 141 when nobody reads the
            output any more; 1 for a defect.
    """
    try:
        yield
    except KvproofError as error:
        _tell(*(f"  | {line.rstrip()}" for line in error.log_tail), error.message,
              *([f"next: {error.tip}"] if error.tip else []))
        raise SystemExit(error.exit_code) from None
    except Exit as error:
        _tell(*([error.message] if error.message else []))
        raise SystemExit(error.code) from None
    except UnexpectedExit as error:
        if error.result.hide:
            _tell(str(error).rstrip())
        status = error.result.exited
        raise SystemExit(status if status >= 0 else 128 - status) from None
    except KeyboardInterrupt:
        _tell("interrupted")
        raise SystemExit(130) from None
    except Exception as error:
        if isinstance(error, BrokenPipeError) and (_nobody_reads(sys.stdout) or _nobody_reads(sys.stderr)):
            raise SystemExit(141) from None
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            _tell(f"could not write{f' {error.filename}' if error.filename else ''}: {error.strerror}",
                  "next: free some space, then run the same command again")
            raise SystemExit(1) from None
        if isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename:
            _tell(f"{error.filename}: {error.strerror}", "next: use a name or folder that can be read and written")
            raise SystemExit(2) from None
        _tell("".join(traceback.format_exception(error)).rstrip(),
              f"this is a defect in kvproof {__version__}: please report it with the lines above")
        raise SystemExit(1) from None
    finally:
        _finish_stdout()


def task_errors(body: _Body) -> _Body:
    """`report_errors` around a task, so that plain `invoke` ends as `./inv` does. Goes below `@task`.

    A task called with --json always leaves one JSON document on stdout: an error that comes before the result
    is one too.
    """

    @functools.wraps(body)
    def reported(*args: Any, **kwargs: Any) -> Any:
        with report_errors():
            try:
                return body(*args, **kwargs)
            except KvproofError as error:
                if kwargs.get("json") and not error.result_printed:
                    said = {"error": error.message, "next": error.tip, "exit_code": error.exit_code}
                    print(Redactor()(json.dumps(said, indent=2, ensure_ascii=False)), flush=True)
                raise

    return reported  # type: ignore[return-value]


class _Checked(Argument):
    """An argument that says what is wrong with a value.

    invoke's own lets a ValueError out, and takes a mistyped option for the value of a positional one.
    """

    context: ParserContext | None = None

    def set_value(self, value: Any, cast: bool = True) -> None:
        if self.positional and str(value).startswith("-") and value != "-":
            raise ParseError(f"No idea what {value!r} is!", self.context)
        try:
            super().set_value(value, cast=cast)
        except ValueError:
            wanted = _NUMBERS.get(self.kind, f"a value of type {self.kind.__name__}")
            raise UsageError(f"--{self.names[0]} needs {wanted}, seen {value!r}") from None


def _checked(argument: Argument) -> _Checked:
    # Tasks and the core make their arguments themselves and take no other class for them.
    argument.__class__ = _Checked
    return argument


def _project_tasks(config: Config) -> Collection:
    """tasks.py of the project that this package lies in."""
    file = PROJECT / "tasks.py"
    if not file.is_file():
        raise CannotRunError(f"{file}: no such file", tip="run ./inv in a complete checkout of kvproof")
    module, folder = FilesystemLoader(start=str(PROJECT), config=config).load("tasks")
    return Collection.from_module(module, loaded_from=folder, auto_dash_names=config.tasks.auto_dash_names)


def _usage(context: ParserContext) -> str:
    may_be_left_out = [f"[{_shouted(a)}]" for a in context.args.values() if a.optional]
    may_be_left_out += [f"[{_shouted(a)} ...]" for a in context.args.values() if a.kind is list]
    return " ".join([context.name, *(_shouted(a) for a in context.positional_args), *may_be_left_out])


def _with_flag(argv: list[str], task: str, optional: Sequence[str]) -> list[str]:
    """Puts the flag before a word that a task takes but can do without, as in `inv doctor NAME`: for invoke, what is
    positional is required. Such a task has, besides this one, only options without a value."""
    at = argv.index(task) + 1
    if not optional or f"--{optional[0]}" in argv[at:]:
        return argv
    word = next((n for n in range(at, len(argv)) if argv[n] == "--" or not argv[n].startswith("-")), None)
    return argv if word is None or argv[word] == "--" else [*argv[:word], f"--{optional[0]}", *argv[word:]]


def _with_flags(argv: list[str], task: str, iterable: Sequence[str]) -> list[str]:
    """The same before each word of a task that takes any number of them, as in `inv pin NAME NAME`."""
    if not iterable:
        return argv
    at, flag = argv.index(task) + 1, f"--{iterable[0]}"
    bare = [not word.startswith("-") and argv[n - 1] != flag for n, word in enumerate(argv[at:], at)]
    return [*argv[:at], *(part for word, is_bare in zip(argv[at:], bare, strict=True)
                          for part in ([flag, word] if is_bare else [word]))]


def _shouted(argument: Argument) -> str:
    return argument.names[0].upper()


def _unquoted(text: str) -> str:
    with contextlib.suppress(ValueError, SyntaxError):
        return str(ast.literal_eval(text))
    return text.strip("'")


def _misused_option(argv: Sequence[str], context: ParserContext | None, word: str) -> str | None:
    """Why a word was left over though it looks like an option's value; None when it does not."""
    seen: set[str] = set()
    for token in argv:
        flag, equals, value = token.partition("=")
        if context is None or flag not in context.flags:
            continue
        argument = context.flags[flag]
        if equals and value == word and not argument.takes_value:
            return f"{flag} takes no value, seen {token}"
        if argument.takes_value and argument.kind is not list and argument.name in seen:
            return f"{flag} is given twice; give it once"
        seen.add(argument.name)
    return None


def _tell(*lines: str) -> None:
    if lines:
        with contextlib.suppress(OSError, ValueError):
            print(Redactor()("\n".join(lines)), file=sys.stderr, flush=True)


def _nobody_reads(stream: IO[str]) -> bool:
    """Whether the other end of a stream has gone, as with `./inv recipes | head -1`."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return bool(poll.poll(0))
    except (OSError, ValueError, AttributeError):
        return False


def _finish_stdout() -> None:
    """Write out what is buffered now: when Python itself fails to at its exit, it prints a traceback."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except (OSError, ValueError) as error:
        _discard_stdout()
        _tell(f"the result could not be written to stdout: {error}")
        raise SystemExit(1) from None


def _discard_stdout() -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    main()
