"""Negative control: everything stored is dropped; the retrieval check must turn red."""

from __future__ import annotations

from ..evidence import Verdict
from ..session import Session
from . import retrieval
from .judgement import Judgement, error

NAME = "control-drop"
CONTROL = True
NEEDS = ("retrieval",)


def run(session: Session) -> Judgement:
    if session.cache is None:
        return error("there is no cache server whose store could be dropped")
    session.settle()
    session.connector.drop_store(session.cache, session.layout)
    session.empty_engine_cache()
    seen = retrieval.judge_pass(session, session.send("after_drop"))
    if seen.verdict is Verdict.FAIL:
        return Judgement(Verdict.PASS, None, seen.measurements)
    if seen.verdict is Verdict.PASS:
        return Judgement(Verdict.FAIL, "the retrieval check stayed green although nothing was stored any more",
                         seen.measurements)
    return Judgement(Verdict.ERROR, f"the retrieval could not be judged: {seen.reason}", seen.measurements)
