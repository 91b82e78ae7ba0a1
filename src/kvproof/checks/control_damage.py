"""Negative control: bytes of stored KV are changed on their way back; the comparison must turn red."""

from __future__ import annotations

from ..evidence import Measurement, Verdict
from ..session import Session
from . import comparison, retrieval
from .judgement import Judgement, error

NAME = "control-damage"
CONTROL = True
NEEDS = ("retrieval", "comparison")


def run(session: Session) -> Judgement:
    if session.cache is None:
        return error("there is no cache server whose store could be damaged")
    if session.settle() is False:
        return error("stores were still under way, so damaging them would prove nothing")
    damage = session.connector.damage_store(session.cache, session.layout, session.recipe.prompts.seed)
    session.empty_engine_cache()
    result = session.send("after_damage")
    done = Measurement(name="changed_bytes", value=damage.changed_bytes, unit="bytes",
                       source=f"of {damage.total_bytes} bytes in {damage.files} files")
    delivered = retrieval.judge_pass(session, result)
    if delivered.verdict is not Verdict.PASS:
        return error(f"the damaged KV did not come back, so nothing was tested: {delivered.reason}",
                     [done, *delivered.measurements])
    seen = comparison.judge_pass(session, result)
    found = (done, *seen.measurements)
    if seen.verdict is Verdict.FAIL:
        return Judgement(Verdict.PASS, None, found)
    if seen.verdict is Verdict.PASS:
        return Judgement(Verdict.FAIL, f"the comparison stayed green although {damage.changed_bytes} bytes of stored "
                         "KV were changed", found)
    return Judgement(Verdict.ERROR, f"the comparison could not be judged: {seen.reason}", found)
