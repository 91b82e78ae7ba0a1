"""Is offloading active now, on a server that runs already and was not started here?

The steps are those of a proof, without its controls: store, a hit in the engine's own cache to compare with, empty
that cache, retrieve, compare. Each may already settle the verdict.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from typing import Any

from .checks.comparing import failed_requests
from .connectors import connector as connector_named
from .console import Console
from .errors import CannotRunError, KvproofError, RecipeError, ServerError, UsageError, nearest
from .evidence import Measurement, Pass
from .live import OUTPUT_TOKENS, Live, NoReset, connector_of
from .metrics import CounterReset
from .probing import GUIDE, LEAST_SHARE, Figures, Judged, Verdict, compared, from_counters, growth, served, stored
from .prompts import Prompt
from .remote import KEY_VARIABLE, Deadline, OutOfTime, Remote, find_engine, read_address

LIMIT_S = 300.0
"""For everything."""
MAX_PROMPTS = 16
MAX_EVICT_TOKENS = 65_536
"""Most that is sent to push prompts out of an engine's cache that cannot be emptied."""
_RETRY_S = 1.0


@dataclass(frozen=True)
class Report:
    """What a probe found.

    Attributes:
        url: the engine's address, without a password.
        engine, engine_version, connector, model: as the servers told; None when they did not.
        sends: what was announced before anything was sent; None when nothing was to be sent.
        notes: what is worth knowing beside the verdict.
    """

    url: str
    judged: Judged
    engine: str | None = None
    engine_version: str | None = None
    connector: str | None = None
    model: str | None = None
    sends: str | None = None
    measurements: tuple[Measurement, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return {Verdict.WORKING: 0, Verdict.UNKNOWN: CannotRunError.exit_code}.get(self.judged.verdict, 1)


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for.

    Attributes:
        connector: kvproof's name of the KV connector that there should be; None lets the servers tell.
        model: served model name; None takes the only one.
        passive: send no prompts, judge from the counters alone.
        prompts: how many to make up and send.
    """

    connector: str | None = None
    model: str | None = None
    passive: bool = False
    prompts: int = 3


@dataclass
class _Progress(Figures):
    """What is known so far, so that a report can be made at any moment."""

    live: Live | None = None
    version: str | None = None
    sends: str | None = None

    def report(self, url: str, judged: Judged) -> Report:
        live = self.live
        if live is None:
            return Report(url, judged)
        names = (live.connector.NAME if live.connector else None, live.attached)
        return Report(url, judged, live.engine.NAME, self.version, " / ".join(filter(None, names)) or None,
                      live.client.model or None, self.sends, tuple(self.measurements), tuple(live.notes))


def probe(url: str, console: Console, wishes: Wishes, cache_url: str | None = None) -> Report:
    """Ask a running engine, and tell.

    Args:
        cache_url: HTTP interface of the cache server, a second witness; None when there is none.

    Raises:
        UsageError: an address or a name is wrong.
    """
    if not 1 <= wishes.prompts <= MAX_PROMPTS:
        raise UsageError(f"--prompts is {wishes.prompts}, expected 1 to {MAX_PROMPTS}")
    try:
        attached = connector_named(wishes.connector) if wishes.connector is not None else None
    except RecipeError as error:
        raise UsageError(error.message.replace("connector.name", "--connector")) from None
    address = read_address(url, "URL")
    cache_address = read_address(cache_url, "--cache-server") if cache_url is not None else None
    deadline, progress = Deadline(LIMIT_S), _Progress()
    client = Remote(f"engine at {address.shown}", address, deadline, os.environ.get(KEY_VARIABLE) or None)
    cache = Remote(f"cache server at {cache_address.shown}", cache_address, deadline) if cache_address else None
    try:
        client.look_up()
        engine, page = find_engine(client)
        progress.live = Live(client, engine, page, cache, attached, console)
        judged = _judge(progress, progress.live, wishes)
    except CounterReset as error:
        judged = Judged(Verdict.UNKNOWN, f"{error.message}: its process was restarted meanwhile", "try again")
    except ServerError as error:
        judged = Judged(Verdict.UNKNOWN, error.message, error.tip or "look at the address and the server's log")
    finally:
        for one in filter(None, (client, cache)):
            one.close()
    return progress.report(address.shown, judged)


def _judge(progress: _Progress, live: Live, wishes: Wishes) -> Judged:
    progress.version = live.engine.version(live.client)
    _meet_cache_server(live)
    live.ask_what_is_attached()
    if live.told and live.attached is None:
        return Judged(Verdict.ABSENT, f"{live.engine.NAME} itself says that it has no KV connector",
                      f"see 'Was the connector made' in {GUIDE}")
    if live.told and wishes.connector is not None and live.attached != live.engine.CONNECTORS.get(wishes.connector):
        live.note(f"--connector says {wishes.connector}, the engine says {live.attached}")
    if wishes.passive:
        return from_counters(progress, live)
    missing = next((n for n in ("external_hit_tokens", "local_hit_tokens") if n in live.engine.UNMEASURED), None)
    if missing is not None:
        reason, link = live.engine.UNMEASURED[missing]
        return Judged(Verdict.UNKNOWN, f"{live.engine.NAME} does not offer {missing}: {reason}",
                      f"see {link}; --passive with --cache-server asks the cache server alone")
    _choose_model(live, wishes.model)
    return _by_sending(progress, live, wishes)


def _meet_cache_server(live: Live) -> None:
    """See whether the cache server is one; it is left out when not, since the engine alone tells much."""
    if live.cache is None:
        return
    try:
        live.cache.look_up()
        theirs = connector_of(live.cache.get_text("/metrics"))
        why = "its /metrics page has no counters that are known"
    except OutOfTime:
        raise
    except ServerError as error:
        theirs, why = None, error.message + (f" ({error.tip})" if error.tip else "")
    if theirs is None:
        live.note(f"without the cache server at {live.cache.address.shown}: {why}")
        live.cache = None
    elif live.connector is None or not live.connector.COUNTERS:
        live.connector = theirs


def _choose_model(live: Live, wanted: str | None) -> None:
    answer = live.client.get_json("/v1/models")
    try:
        served_models = {str(m["id"]): dict(m) for m in answer["data"]}
    except (KeyError, TypeError, ValueError):
        raise ServerError(f"{live.client.name}: /v1/models has no list of ids",
                          tip="give the address of the engine itself") from None
    if wanted is not None and wanted not in served_models:
        raise UsageError(f"--model: the engine serves no {wanted!r}; {nearest(wanted, served_models)}")
    whole = [name for name, m in served_models.items() if not m.get("parent")]  # the others are adapters of these
    roots = {served_models[name].get("root") for name in whole}
    if wanted is None and len(whole) != 1 and (len(roots) != 1 or None in roots):  # else they are names of one model
        raise ServerError(f"{live.client.name} serves {len(whole)} models",
                          tip="choose one: --model " + (" or ".join(sorted(whole)[:5]) or "NAME"))
    live.client.model = wanted or whole[0]
    longest = served_models[live.client.model].get("max_model_len")
    live.context_tokens = longest if isinstance(longest, int) else None


def _by_sending(progress: _Progress, live: Live, wishes: Wishes) -> Judged:
    chunk, cacheable = live.prompt_chunks()
    if cacheable < 2 * chunk:
        return Judged(Verdict.UNKNOWN, f"its context of {live.context_tokens} tokens is too short for two chunks of "
                                       f"{chunk}, and a shorter prompt may never be stored",
                      "offloading does nothing for prompts that short; raise --max-model-len")
    # One token is left to compute, so that any block size of the engine cuts where the connector's chunk does.
    length, capacity = cacheable + 1, live.capacity_tokens()
    progress.sends = _announcement(wishes.prompts, length, capacity)
    live.console.say(progress.sends)
    seed, cacheable = secrets.token_hex(8), cacheable * wishes.prompts
    prompts = live.prompts(seed, wishes.prompts, length)
    progress.add("cacheable_tokens", cacheable, "tokens",
                 f"{wishes.prompts} prompts of {length}, in whole chunks of {chunk}")
    before, cache_before = live.read(), live.read_cache()
    first = live.send("store", prompts)
    failed = failed_requests(first.samples)
    if failed:
        return Judged(Verdict.UNKNOWN, f"requests fail: {failed[0]}",
                      f"set {KEY_VARIABLE}" if "HTTP 401" in failed[0] else "look at the engine's log")
    asked = _asked(progress, live, before)
    inside = live.attached is not None or live.shows_connector()
    if asked == 0 and not inside:
        return Judged(Verdict.ABSENT, f"the engine asked no connector for any of {wishes.prompts * length} new tokens",
                      f"its options did not arrive: see 'Was the connector made' in {GUIDE}")
    local, again = live.send("local hit", prompts), live.send("local hit again", prompts)
    settled = live.settle()
    kept = stored(progress, live, before, cache_before)
    if not settled:
        return Judged(Verdict.UNKNOWN, "stores were still under way when the time for them was over",
                      "look at the cache server's log")
    if kept == 0:
        return Judged(Verdict.IDLE, f"{wishes.prompts} new prompts of {length} tokens were computed, and nothing was "
                                    "stored", f"see 'Does anything get stored' in {GUIDE}")
    retrieved = _retrieve(live, prompts, seed, capacity, cacheable)
    if isinstance(retrieved, Judged):
        return retrieved
    configured = bool(asked) or inside or wishes.connector is not None or live.cache is not None
    return served(progress, live, retrieved, cacheable, kept, configured) or \
        compared(progress, live, cacheable, first, local, again, retrieved)


def _announcement(count: int, length: int, capacity: int | None) -> str:
    push = ""
    if capacity is not None and capacity <= MAX_EVICT_TOKENS:
        push = f"; if it has none, at most {capacity + 2 * length:,} more tokens push them out"
    return (f"about to send {count} prompts of {length:,} tokens, 4 or 5 times each, for {OUTPUT_TOKENS} tokens of "
            "answer: random names and numbers that kvproof makes up, so nothing of yours is read. In between, the "
            f"engine's own prefix cache is emptied by its reset endpoint{push}. What its connector keeps stays. "
            "--passive sends nothing")


def _asked(progress: _Progress, live: Live, before: dict[str, float]) -> float | None:
    """Tokens for which the engine asked its connector since then."""
    counter = live.counters.get("external_query_tokens")
    now = live.read().get(counter.key) if counter else None
    value = None if counter is None or now is None else now - before.get(counter.key, 0)
    progress.add("external_query_tokens", value, "tokens", "engine: asked of its connector, when the prompts were new")
    return value


def _retrieve(live: Live, prompts: list[Prompt], seed: str, capacity: int | None, cacheable: int) -> Pass | Judged:
    """The prompts again, once the engine's own cache has lost them; a verdict when it would not lose them."""
    for last in (False, True):
        if live.keeps_prefixes():
            try:
                live.empty()
            except NoReset as error:
                refused = _push_out(live, seed, capacity, error)
                if refused is not None:
                    return refused
                last = True
        result = live.send("retrieve", prompts)
        here = growth(live, result, "local_hit_tokens") or 0
        if here <= (1 - LEAST_SHARE) * cacheable:
            return result
        if last:
            break
        live.note("the engine's own cache was not emptied at the first try; it is not while requests run")
        time.sleep(_RETRY_S)
    return Judged(Verdict.UNKNOWN, f"the engine's own cache served {here:.0f} tokens though it was to be emptied, so "
                                   "its connector was not asked for them", "try again while no other requests run")


def _push_out(live: Live, seed: str, capacity: int | None, error: ServerError) -> Judged | None:
    """Send other prompts until the engine's own cache has lost the first ones; why not, or None when it was done."""
    if capacity is None or capacity > MAX_EVICT_TOKENS:
        room = "is of a size that it does not tell" if capacity is None else f"holds up to {capacity:,} tokens"
        return Judged(Verdict.UNKNOWN, f"whether anything comes back cannot be seen: the engine has no reset endpoint "
                                       f"({error.message}), and its own cache {room}; at most {MAX_EVICT_TOKENS:,} are "
                                       "sent to push prompts out of it",
                      "vLLM has the endpoint with VLLM_SERVER_DEV_MODE=1; or look at the counters: --passive")
    length = (live.context_tokens or 4096) - 1
    count = -(-capacity // length) + 1
    live.console.say(f"no reset endpoint: sending {count} other prompts of {length:,} tokens, for one token each")
    failed = failed_requests(live.send("push out", live.prompts(f"{seed} other", count, length), 1).samples)
    return Judged(Verdict.UNKNOWN, f"the prompts that push out the first ones fail: {failed[0]}",
                  "look at the engine's log") if failed else None


def text(report: Report) -> str:
    """The verdict, who was asked, and the numbers."""
    lines = [f"{report.url}: {report.judged.verdict.value.upper()}: {report.judged.reason}"]
    about = {"engine": " ".join(filter(None, (report.engine, report.engine_version))), "connector": report.connector,
             "model": report.model}
    lines += [f"  {name:<10} {value}" for name, value in about.items() if value]
    width = max((len(m.name) for m in report.measurements), default=0)
    for m in report.measurements:
        value = "unknown" if m.value is None else f"{m.value:.6g}" if isinstance(m.value, float) else str(m.value)
        lines.append(f"  {m.name:<{width}}  {value:>9} {m.unit}  ({m.source})")
    return "\n".join([*lines, *(f"  note: {note}" for note in report.notes)])


def as_data(report: Report) -> dict[str, Any]:
    return {
        "url": report.url, "verdict": report.judged.verdict.value, "reason": report.judged.reason,
        "next": report.judged.tip, "engine": report.engine, "engine_version": report.engine_version,
        "connector": report.connector, "model": report.model, "sends": report.sends,
        "measurements": [m.model_dump(mode="json", exclude={"limit", "relation"}) for m in report.measurements],
        "notes": list(report.notes), "exit_code": report.exit_code,
    }


def raise_for(report: Report) -> None:
    """End with the report's exit code; the verdict itself is printed already.

    Raises:
        KvproofError: any verdict but working.
    """
    if report.exit_code == 0:
        return
    kind = CannotRunError if report.exit_code == CannotRunError.exit_code else KvproofError
    error = kind(f"offloading at {report.url}: {report.judged.verdict.value}", tip=report.judged.tip)
    error.result_printed = True
    raise error
