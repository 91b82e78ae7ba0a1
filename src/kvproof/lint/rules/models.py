"""Models: known to this version or not, hybrid KV caches, assistants, attention backends, the allocator."""

from __future__ import annotations

import re

from .. import mend
from ..facts.models import GEMMA, HOPPER, UNIFIED, size
from ..facts.native import INPROCESS, NATIVE
from ..tree import Scalar
from ..view import View
from . import Judge

_PIN = "--attention-backend TRITON_ATTN"
_NARROW = {"FLASH_ATTN", "FLASHINFER", "FLASH_ATTN_VLLM_V1", "FA3"}
"""Backends that do not take heads of 512 by themselves."""


def known(judge: Judge) -> None:
    for view in _vllm(judge):
        launch = view.launch
        if view.family is not GEMMA:
            continue
        at = launch.model.start() if launch.model is not None else launch.start
        model = launch.model.value[:80] if launch.model is not None else GEMMA.name
        judge.tell("model-too-new", at, launch, model=model)
        if view.size == UNIFIED and view.map("hf-overrides") is None and not _is_before(view, "<0.19"):
            judge.tell("model-12b-too-new", at, launch)


def _is_before(view: View, bounds: str) -> bool:
    version = view.launch.version
    return version is not None and version.holds(bounds) is True


def _vllm(judge: Judge) -> list[View]:
    return [view for view in judge.engines if view.launch.program == "vllm"]


def hybrid(judge: Judge) -> None:
    for view in _vllm(judge):
        launch = view.launch
        off, on = launch.flag("disable-hybrid-kv-cache-manager"), launch.flag("no-disable-hybrid-kv-cache-manager")
        inprocess = view.uses(INPROCESS)
        if inprocess is not None and on is not None:
            judge.tell("manager-inprocess", on.start, launch)
        if view.family is None or not view.family.uneven or not view.offloads:
            continue
        name, at = view.family.name, view.connectors[0].at
        if inprocess is not None:
            judge.tell("hybrid-inprocess", inprocess.at, launch, model=name)
        native = view.uses(NATIVE)
        size_key = native.extra.entry("block_size") if native is not None and native.extra is not None else None
        if size_key is not None:
            judge.tell("hybrid-block-size", size_key.key.start, launch, model=name)
        if off is not None:
            judge.tell("hybrid-manager-disabled", off.start, launch, model=name)
        if view.family is GEMMA and inprocess is None:
            judge.tell("hybrid-no-path", at, launch, model=name)
            if on is None and off is None:
                judge.tell("hybrid-manager-off", at, launch, model=name, edits=mend.option(
                    judge.source, launch, "--no-disable-hybrid-kv-cache-manager"))


def assistants(judge: Judge) -> None:
    for view in _vllm(judge):
        launch, assistant = view.launch, view.assistant
        if assistant is None:
            continue
        named = assistant.text.value
        ours = GEMMA.pattern.search(named) is not None and "assistant" in named.lower()
        if not ours:
            continue
        at = assistant.start
        judge.tell("assistant-too-new", at, launch)
        method = view.draft.get("method") if view.draft is not None else None
        if isinstance(method, Scalar) and view.method not in ("mtp", None, "gemma4_mtp"):
            judge.tell("assistant-method", method.start, launch, seen=view.method,
                       edits=mend.replace(judge.source, method.text, "mtp"))
        draft, target = size(named), view.size
        if draft and target and draft != target and view.family is GEMMA:
            right = re.sub(re.escape(draft), _cased(target), named, flags=re.I)
            judge.tell("assistant-mismatch", at, launch, draft=_cased(draft), target=_cased(target), right=right)
        if draft == UNIFIED and launch.flag("enforce-eager") is None and not view.on_cpu:
            judge.tell("assistant-12b-eager", at, launch,
                       edits=mend.option(judge.source, launch, "--enforce-eager"))


def _cased(size_name: str) -> str:
    return size_name.upper()


def backends(judge: Judge) -> None:
    """What the widest heads of Gemma 4 need."""
    for view in _vllm(judge):
        launch = view.launch
        wide = view.family is GEMMA or (view.assistant is not None and bool(GEMMA.pattern.search(
            view.assistant.text.value)))
        if not wide or view.on_cpu:
            continue
        pinned = view.backend is not None and view.backend not in _NARROW
        if not pinned and view.drafts_with_mtp:
            flag = launch.flag("speculative-config", "spec-method")
            at = flag.start if flag is not None else launch.start
            edits = mend.option(judge.source, launch, _PIN) if view.backend is None else ()
            judge.tell("mtp-backend", at, launch, edits=edits)
            if not HOPPER.search(judge.source.text):
                judge.tell("mtp-backend-gpu", at, launch, edits=edits)
        invariant = launch.settings.get("VLLM_BATCH_INVARIANT")
        if invariant is not None and invariant.text not in (None, "", "0") and not pinned:
            judge.tell("batch-invariant-backend", invariant.start, launch, model=GEMMA.name,
                       edits=mend.option(judge.source, launch, _PIN) if view.backend is None else ())
        dead = launch.settings.get("VLLM_ATTENTION_BACKEND")
        if dead is not None and view.backend is None:
            judge.tell("backend-env-dead", dead.start, launch, seen=dead.text or "NAME")


def native_drafting(judge: Judge) -> None:
    for view in _vllm(judge):
        native = view.uses(NATIVE)
        if native is None or not view.drafts_with_mtp:
            continue
        judge.tell("native-mtp", native.at, view.launch)
        if view.family is GEMMA:
            judge.tell("native-mtp-sliding", native.at, view.launch)


def allocator(judge: Judge) -> None:
    for view in _vllm(judge):
        launch = view.launch
        if not view.offloads or launch.flag("enable-sleep-mode", "enable-cumem-allocator") is not None:
            continue
        setting = launch.settings.get("PYTORCH_CUDA_ALLOC_CONF")
        if setting is not None and re.search(r"expandable_segments\s*:\s*true", setting.text or "", re.I):
            judge.tell("allocator", setting.start, launch, name=setting.name)


RULES = (known, hybrid, assistants, backends, native_drafting, allocator)
