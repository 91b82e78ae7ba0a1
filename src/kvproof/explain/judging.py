"""From what was found in logs to an answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..signatures import Signature
from . import configuration, totals
from .cleaning import Line, excerpt
from .evidence import Evidence, Explanation, Input, Kind, Match, Status
from .scanning import Log, Start
from .totals import TO_BE_SURE
from .watching import WORKING, ZERO_LINES

_HIT = re.compile(r"External prefix cache|LMCache hit tokens|_load_bytes|CPU_to_GPU|Retrieved")
_SEVERITIES = {"fatal": 0, "error": 1, "warning": 2}


def judge(logs: Sequence[Log], signatures: Sequence[Signature], version: str | None = None,
          unread: Sequence[Input] = ()) -> Explanation:
    """The answer that logs of the same servers give together.

    Args:
        logs: what was found in each.
        signatures: known failures, those that were looked for.
        version: of the engine, in place of what the logs say.
        unread: logs that could not be read.
    """
    versions = _versions(logs, version)
    working = [e for log in logs for start in log.starts for e in _worked(start)]
    working += [e for log in logs for e in totals.read(log.samples) if e.kind is Kind.WORKING]
    seen = [e for log in logs for e in _seen(log, versions, worked=bool(working))]
    matches = _matches(logs, signatures, versions)
    good = [m for m in matches if m.excluded is None and not m.earlier]
    hard = [m for m in good if m.signature.means == "failure" and m.signature.severity != "warning"]
    quiet = [m for m in good if m.signature.means == "not offloading"]
    minor = [m for m in good if m.signature.means == "failure" and m.signature.severity == "warning"]
    silent = [e for e in seen if e.kind is Kind.SILENT]
    hints = [e for e in seen if e.kind is Kind.HINT]
    if hard:
        status = Status.FAILURE
    elif working:
        status = Status.WORKING
    elif quiet or silent:
        status = Status.NOT_OFFLOADING
    elif minor and not all(_is_up(log) for log in logs):
        status = Status.FAILURE
    else:
        status = Status.NOT_OFFLOADING if hints else Status.UNKNOWN
    first = [*hard, *quiet, *minor] if status is Status.FAILURE else [*quiet, *minor]
    evidence = working if status is Status.WORKING else [*silent, *hints]
    if status is Status.FAILURE and working:
        evidence = [*working[:1], *evidence]
    return Explanation(
        status, tuple(first), tuple(m for m in matches if m not in good),
        (*_distinct(evidence), *_distinct(e for e in seen if e.kind is Kind.NOTE)),
        _telling(logs, status), tuple(versions.items()),
        (*(Input(log.name, log.size_bytes, log.lines, "; ".join(log.remarks)) for log in logs), *unread),
    )


def _versions(logs: Sequence[Log], given: str | None) -> dict[str, str]:
    best: dict[str, tuple[int, str]] = {}
    for log in logs:
        for component, seen in log.versions.items():
            if seen[0] >= best.get(component, (0, ""))[0]:
                best[component] = seen
    versions = {component: seen[1] for component, seen in best.items()}
    if given is not None:
        engine = next((e for e in ("sglang", "tensorrt-llm") if e in versions and "vllm" not in versions), "vllm")
        versions[engine] = given
    return dict(sorted(versions.items(), key=lambda item: (item[0] != "vllm", item[0])))


def _matches(logs: Sequence[Log], signatures: Sequence[Signature], versions: dict[str, str]) -> list[Match]:
    """Every signature that was found, once, worst and then first in its log."""
    found = []
    for signature in signatures:
        excluded = signature.excluded_by(versions)
        places = [(log, number) for log in logs for number, start in enumerate(log.starts)
                  if _recognised(signature, log, start)]
        lines = [(_first_line(signature, log.starts[n]), any(_worked(later) for later in log.starts[n + 1:]))
                 for log, n in places]
        if lines:
            line, earlier = min(lines, key=lambda item: item[1])
            found.append(Match(signature, _short(signature, line), excluded, earlier))
    order = [log.name for log in logs]
    found.sort(key=lambda m: (_SEVERITIES[m.signature.severity], order.index(m.line.log), m.line.number))
    return found


def _recognised(signature: Signature, log: Log, start: Start) -> bool:
    def has(name: str, place: int) -> bool:
        count = start.counts.get((signature.id, name, place), 0)
        return count >= (1 if log.is_paste or name == "unless" else signature.at_least)

    if any(has("unless", place) for place in range(len(signature.unless))):
        return False
    return all(has("all_of", place) for place in range(len(signature.all_of))) and (
        not signature.any_of or any(has("any_of", place) for place in range(len(signature.any_of))))


def _first_line(signature: Signature, start: Start) -> Line:
    lists = ("any_of", "all_of")
    return min((line for key, line in start.found.items()
                if isinstance(key, tuple) and key[0] == signature.id and key[1] in lists), key=lambda line: line.number)


def _short(signature: Signature, line: Line) -> Line:
    around = next((p.compiled for p in (*signature.any_of, *signature.all_of) if p.found_in(line.text)), None)
    return Line(line.log, line.number, excerpt(line.text, around))


def _worked(start: Start) -> list[Evidence]:
    said = {
        "external_rate": "the engine's external hit rate is above zero",
        "retrieved": "tokens were retrieved from the cache server",
        "hit_tokens": "LMCache had tokens of a prompt",
        "native_load": "bytes were loaded back from host memory",
    }
    return [Evidence(Kind.WORKING, said[name], _cut(start.found[name])) for name in WORKING if name in start.found]


def _seen(log: Log, versions: dict[str, str], worked: bool) -> list[Evidence]:
    """Everything but what worked."""
    found = [e for e in totals.read(log.samples) if e.kind is not Kind.WORKING]
    for start in log.starts:
        found += configuration.read(log, start, versions)
        zero, beside = start.found.get("external_zero"), start.found.get("external_zero_local_hits")
        if zero is None or worked:
            continue
        kept = next((start.found[name] for name in ("stored", "native_store") if name in start.found), None)
        said = "the engine's external hit rate stays at 0.0%" + (", though KV is stored" if kept else "")
        if beside is not None:
            found.append(Evidence(Kind.HINT, f"{said} while its own prefix cache has hits: prompts do repeat, and "
                                  "nothing comes back through the connector", _cut(beside), TO_BE_SURE))
        elif log.is_paste or start.counts.get("external_zero_busy", 0) >= ZERO_LINES:
            found.append(Evidence(Kind.HINT, f"{said}: nothing comes back through the connector", _cut(zero),
                                  TO_BE_SURE))
        else:
            found.append(Evidence(Kind.NOTE, f"{said} so far; as long as no prompt was repeated it must be", _cut(zero),
                                  TO_BE_SURE))
    return found


def _is_up(log: Log) -> bool:
    """Whether a log is of a server that came up and met no error, so that a warning in it is no failure."""
    return not log.is_paste and "ready" in log.starts[-1].found and not log.telling.roots and not log.telling.errors


def _telling(logs: Sequence[Log], status: Status) -> tuple[Line, ...]:
    """Lines for somebody who must look further: of an unknown answer, and of one that names no error itself."""
    if status is Status.NOT_OFFLOADING:
        return tuple(line for log in logs for line in log.telling.roots[:2])
    if status is not Status.UNKNOWN:
        return ()
    told = tuple(line for log in logs for line in log.telling.best())
    return told or tuple(line for log in logs if not log.samples.values for line in log.last)


def _cut(line: Line) -> Line:
    return Line(line.log, line.number, excerpt(line.text, _HIT))


def _distinct(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Each text once, where it was seen first: many starts of a server say the same."""
    found: dict[str, Evidence] = {}
    for one in evidence:
        found.setdefault(one.text, one)
    return list(found.values())
