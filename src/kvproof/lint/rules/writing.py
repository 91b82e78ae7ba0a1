"""How it is written: JSON, quotes, dashes, lines that go on, options that are not there."""

from __future__ import annotations

from .. import mend
from ..facts.native import KV_FLAGS, NEAR_BUT_RIGHT
from ..finding import Edit
from ..jsonish import Problem
from ..model import Flag, Launch
from ..tree import Map, Seq, walk
from ..view import JSON_FLAGS, View
from . import Judge, near

_KINDS = {"smart-quotes": "json-smart-quotes", "single-quotes": "json-single-quotes",
          "trailing-comma": "json-trailing-comma", "python-literal": "json-python-literal",
          "literal-quotes": "json-literal-quotes", "smart-space": "json-odd-space", "broken": "json-broken"}
_PREFIXES = ("kv-", "spec", "attention-b", "enforce", "no-disable-h", "disable-h")


def slips(judge: Judge) -> None:
    """What a shell would trip over."""
    for slip in judge.paste.slips:
        edits = [Edit(*edit) for edit in slip.edits]
        judge.tell(slip.id, slip.start, edits=edits, **slip.fields)


def json_texts(judge: Judge) -> None:
    for launch in judge.paste.launches:
        view = judge.view(launch)
        for flag in launch.flags:
            name = flag.name.partition(".")[0]
            if name in JSON_FLAGS and flag.name == name:
                _json(judge, view, flag)


def _json(judge: Judge, view: View, flag: Flag) -> None:
    shown = f"--{flag.name}"
    node = flag.word.node if flag.word is not None else None
    if node is not None:
        if isinstance(node, Map) and not flag.node:
            flag.node = node
        judge.tell("json-not-text", node.start, flag=shown)
        return
    if flag.value is None or (flag.word is not None and flag.word.open and "{" not in flag.value.value):
        return
    if flag.value.value.lstrip()[:1] not in ("{", "[", "'", "“", '"', "‘") and "{" not in flag.value.value:
        return  # a name where JSON can stand, too, or a part that only the shell knows
    root = view.json(flag)
    problems = view.parsed[id(flag)].problems
    if flag.word is not None and flag.word.stripped:
        judge.tell("json-quotes-stripped", flag.at, edits=mend.stripped(judge.source, flag), flag=shown)
    for problem in problems:
        if problem.kind == "broken" and flag.word is not None and flag.word.open:
            continue  # what a variable stands for may be what is missing
        _tell(judge, view.launch, flag, problem, shown)
    if root is not None and not problems:
        _duplicates(judge, root, shown)


def _tell(judge: Judge, launch: Launch, flag: Flag, problem: Problem, shown: str) -> None:
    assert flag.value is not None
    at = flag.value.start(problem.index)
    edits = mend.json(judge.source, flag, problem, shell=launch.shell)
    if problem.kind == "unquoted":
        every = _is_all_unquoted(flag.value.value)
        judge.tell("json-quotes-stripped" if every and launch.shell else "json-unquoted", at, edits=edits, flag=shown,
                   seen=problem.detail[:40])
    else:
        judge.tell(_KINDS[problem.kind], at, edits=edits, flag=shown, seen=problem.detail, detail=problem.detail)


def _is_all_unquoted(text: str) -> bool:
    return '"' not in text and "'" not in text


def _duplicates(judge: Judge, root: object, shown: str) -> None:
    for node in walk(root) if isinstance(root, Map | Seq) else ():
        if isinstance(node, Map):
            seen = set()
            for entry in node.entries:
                if entry.name in seen:
                    judge.tell("json-duplicate-key", entry.key.start, flag=shown, key=entry.name)
                seen.add(entry.name)


def options(judge: Judge) -> None:
    """Options of vLLM that are nearly those that matter here."""
    for view in judge.engines:
        launch = view.launch
        for flag in launch.flags:
            if launch.program != "vllm" or "." in flag.name or flag.name in KV_FLAGS or flag.name in NEAR_BUT_RIGHT:
                continue
            if " " in flag.name:
                _glued(judge, flag)
                continue
            right = near.match(flag.name, KV_FLAGS, 0.8) if flag.name.startswith(_PREFIXES) else None
            if right is not None and flag.name not in ("spec-model", "spec-method", "spec-tokens"):
                edits = [Edit(flag.start, flag.end, f"--{right}")] if _written(judge, flag) else []
                judge.tell("flag-unknown", flag.start, program="vLLM", seen=flag.name, right=right, edits=edits,
                           near=near.sentence(flag.name, f"--{right}", ()))


def _written(judge: Judge, flag: Flag) -> bool:
    return judge.source.text[flag.start:flag.end].lstrip("-").replace("_", "-") == flag.name


def _glued(judge: Judge, flag: Flag) -> None:
    """An item such as "--kv-transfer-config {...}" in a list of arguments."""
    judge.tell("argument-glued", flag.start)


RULES = (slips, json_texts, options)
