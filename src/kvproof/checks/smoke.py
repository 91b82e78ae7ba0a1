"""The model is served under its name, answers, and the connector that was asked for is the one that is active."""

from __future__ import annotations

from ..errors import ServerError
from ..evidence import Measurement
from ..session import Session
from .judgement import Judgement, error, judge

NAME = "smoke"
CONTROL = False
NEEDS: tuple[str, ...] = ()


def run(session: Session) -> Judgement:
    recipe = session.recipe
    found: list[Measurement] = []

    def yes(name: str, value: bool | None, source: str) -> None:
        found.append(Measurement(name=name, value=None if value is None else int(value), unit="yes", limit=1,
                                 relation="==", source=source))

    served = session.client.models()
    yes("served_under_its_name", recipe.model.served_name in served, f"/v1/models: {', '.join(served)}")
    completion = session.client.complete("The answer is", max_tokens=4)
    yes("completes", completion.error is None and bool(completion.token_ids), completion.error or "/v1/completions")
    # Ids that are all unknown would make any two answers equal.
    yes("gives_token_ids", all(token >= 0 for token in completion.token_ids), "/v1/completions: choices[].token_ids")
    if completion.timed_out:
        return error(f"engine: {completion.error}", found)
    try:
        session.client.chat("Say something.", max_tokens=4)
        yes("chats", True, "/v1/chat/completions")
    except ServerError as problem:
        yes("chats", False, problem.message)
    version = session.engine.version(session.client)
    yes("engine_version_as_pinned", None if version is None else version.split("+")[0] == recipe.engine.version,
        f"/version: {version}, recipe: {recipe.engine.version}")
    active = session.engine.active_connector(session.engine_log.read_text(encoding="utf-8", errors="replace"))
    wanted = recipe.connector.name
    yes("connector_active_in_log", active == wanted, f"{session.engine_log.name}: {active}, recipe: {wanted}")
    if session.cache is not None:
        registered = session.connector.registered_engines(session.cache)
        found.append(Measurement(name="registered_engines", value=registered, unit="count", limit=1, relation=">=",
                                 source="cache server's status"))
    result = judge(found)
    if result.reason is None:
        return result
    named = [m for m in found if m.holds() is not True]
    return Judgement(result.verdict, "; ".join(f"not {m.name.replace('_', ' ')} ({m.source})" for m in named),
                     tuple(found))
