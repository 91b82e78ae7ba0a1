"""kv-transfer-config: connectors, roles, fields and keys, by version."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from .. import mend
from ..facts.lmcache_names import MP_KEYS, MP_PREFIX
from ..facts.native import CONNECTORS, EXTRA, FIELDS, KEYS, MP, NATIVE, ROLES, SIMPLE, Name
from ..model import Launch
from ..tree import Entry, Map, Scalar, Seq, string
from ..view import Connector, View
from . import Judge, near

_HALVES = {"kv_producer": "stores and never loads", "kv_consumer": "loads and never stores"}
_MISSPELLED_EXTRA = ("extra_config", "kv_extra_config", "kv_connector_config", "connector_extra_config",
                     "kv_connector_extra_configs")
_MAX_ENTRIES = 300
"""More keys than anything reads are not told one by one."""


def _each(rule: Callable[[Judge, View, Connector], None]) -> Callable[[Judge], None]:
    def run(judge: Judge) -> None:
        for view in judge.engines:
            if view.launch.program == "vllm":
                for connector in view.connectors:
                    rule(judge, view, connector)

    return run


def _names(judge: Judge, view: View, connector: Connector) -> None:
    launch, name = view.launch, connector.name
    if name is None:
        if connector.root is not None and not view.is_broken(connector.root) and _is_whole(connector.root):
            judge.tell("connector-missing", connector.at, launch, flag="kv-transfer-config")
        return
    if connector.custom or "$" in name or "{" in name or "." in name:
        return
    known = CONNECTORS.get(name)
    if known is None:
        right = near.match(name, CONNECTORS)
        entry = connector.root.entry("kv_connector") if connector.root is not None else None
        edits = (mend.replace(judge.source, entry.value.text, right)
                 if right and near.is_sure(name, right) and entry and isinstance(entry.value, Scalar) else ())
        judge.tell("connector-unknown", connector.at, launch, seen=name, edits=edits,
                   right=right or "name one that it has, or give kv_connector_module_path",
                   near=near.sentence(name, right, CONNECTORS))
    elif known.versions is not None:
        _outside(judge, "connector-by-version", connector.at, launch, known, seen=name,
                 right=known.instead or (f"vLLM {known.versions}"))


def _outside(judge: Judge, fact: str, at: int, launch: Launch, known: Name, **fields: object) -> None:
    """A finding for the versions that a name is not in."""
    assert known.versions is not None
    operator, number = known.versions[:-len(known.versions.lstrip("<>="))], known.versions.lstrip("<>=")
    judge.tell(fact, at, launch, versions=("<" if operator == ">=" else ">=") + number, **fields)


def _is_whole(root: Map) -> bool:
    """Whether a map is more than a single dotted option would make."""
    return bool(list(root.all()))


def _roles(judge: Judge, view: View, connector: Connector) -> None:
    root, launch = connector.root, view.launch
    if root is None or connector.chosen != "kv-transfer-config" or view.is_broken(root):
        return
    entry = root.entry("kv_role")
    role = string(entry.value) if entry is not None else None
    if entry is None or role in (None, "null"):
        if connector.name is not None and root is view.map("kv-transfer-config"):
            judge.tell("role-missing", connector.at, launch, flag="kv-transfer-config")
        return
    assert role is not None
    if role not in ROLES:
        if "$" in role or "{" in role:
            return
        right = near.match(role, ROLES) or ("kv_both" if role.lower() in ("both", "kv-both") else None)
        edits = mend.replace(judge.source, entry.value.text, right) if (
            right and (near.is_sure(role, right) or right == "kv_both") and isinstance(entry.value, Scalar)) else ()
        judge.tell("role-unknown", entry.value.start, launch, seen=role, edits=edits,
                   near=near.sentence(role, right, ROLES))
    elif role in _HALVES and connector.name in (NATIVE, SIMPLE):
        judge.tell("role-one-way", entry.value.start, launch, seen=role, connector=connector.name, half=_HALVES[role])


def _fields(judge: Judge, view: View, connector: Connector) -> None:
    root, launch = connector.root, view.launch
    if root is None:
        return
    misplaced = []
    extra = root.get(EXTRA)
    if isinstance(extra, Scalar | Seq):
        judge.tell("extra-not-map", extra.start, launch, seen="a list" if isinstance(extra, Seq) else
                   "text" if extra.quoted else "no map")
    for entry in islice(root.all(), _MAX_ENTRIES):
        if entry.name in FIELDS:
            known = FIELDS[entry.name]
            if known.versions is not None:
                judge.tell("field-by-version", entry.key.start, launch, seen=entry.name)
        elif entry.name in _all_keys():
            misplaced.append(entry)
        elif entry.name in _MISSPELLED_EXTRA and root.entry(EXTRA) is None:
            _rename(judge, launch, entry, EXTRA)
        else:
            right = near.match(entry.name, FIELDS, 0.7)
            _rename(judge, launch, entry, right if right and root.entry(right) is None else None)
    edits = mend.move(judge.source, root, misplaced, EXTRA) if misplaced else ()
    for entry in misplaced:
        judge.tell("field-misplaced", entry.key.start, launch, seen=entry.name, edits=edits)


def _all_keys() -> set[str]:
    return {key for keys in KEYS.values() for key in keys} | set(MP_KEYS)


def _rename(judge: Judge, launch: Launch, entry: Entry, right: str | None) -> None:
    sure = right is not None and (right == EXTRA or near.is_sure(entry.name, right))
    edits = mend.rename(judge.source, entry, right) if sure and right is not None else ()
    judge.tell("field-unknown", entry.key.start, launch, seen=entry.name, edits=edits, right=right or "leave it out",
               near=near.sentence(entry.name, right, FIELDS))


def _keys(judge: Judge, view: View, connector: Connector) -> None:
    if connector.extra is None or connector.name is None:
        return
    own = KEYS.get(connector.name)
    if connector.name == MP:
        own = {key: Name() for key in MP_KEYS}
    if own is None or (connector.custom and connector.name != MP):
        return
    spec = connector.setting("spec_module_path")
    for entry in islice(connector.extra.all(), _MAX_ENTRIES):
        known = own.get(entry.name)
        if known is not None:
            _by_version(judge, view.launch, connector, entry, known)
        elif spec is None:
            _unknown(judge, view.launch, connector, entry, own)
    if connector.name == NATIVE and connector.extra.entry("block_size") and (
            twice := connector.extra.entry("blocks_per_chunk")):
        judge.tell("chunk-given-twice", twice.key.start, view.launch)


def _by_version(judge: Judge, launch: Launch, connector: Connector, entry: Entry, known: Name) -> None:
    assert connector.extra is not None
    if known.instead:
        there = connector.extra.entry(known.instead) is not None or connector.chosen != "kv-transfer-config"
        judge.tell("key-dead", entry.key.start, launch, seen=entry.name, instead=known.instead,
                   edits=mend.remove(entry) if there else (),
                   consequence="" if there else ", and the engine stops for want of the other",
                   fix=f"remove {entry.name}" if there else
                   f'replace it with "{known.instead}": BYTES, in total over all GPUs')
    elif known.versions is not None:
        _outside(judge, "key-by-version", entry.key.start, launch, known, seen=entry.name,
                 readers=f"vLLM {known.versions}")


def _unknown(judge: Judge, launch: Launch, connector: Connector, entry: Entry, own: dict[str, Name]) -> None:
    name, seen = connector.name, entry.name
    if name == MP and not seen.startswith(MP_PREFIX):
        _without_prefix(judge, launch, connector, entry)
        return
    right = near.match(seen, own, 0.75)
    owner = next((o for o, keys in KEYS.items() if o != name and seen in keys), MP if seen in MP_KEYS else None)
    if owner is not None:
        judge.tell("key-of-another", entry.key.start, launch, seen=seen, owner=owner, connector=name,
                   fix=f'{right} in its place' if right else f"leave it out, or use {owner}")
        return
    if right is None and (name == MP or not own):
        return  # a key of a later version is as likely as a mistake
    free = right is not None and connector.extra is not None and connector.extra.entry(right) is None
    edits = mend.rename(judge.source, entry, right) if free and right and near.is_sure(seen, right) else ()
    judge.tell("key-unknown", entry.key.start, launch, seen=seen, connector=name, edits=edits,
               right=right or "leave it out", near=near.sentence(seen, right, own))


def _without_prefix(judge: Judge, launch: Launch, connector: Connector, entry: Entry) -> None:
    owner = next((o for o, keys in KEYS.items() if entry.name in keys), None)
    if owner is not None:
        judge.tell("key-of-another", entry.key.start, launch, seen=entry.name, owner=owner, connector=MP,
                   fix="leave it out: the cache server's --l1-size-gb says how much is kept")
        return
    bare = entry.name.lower().replace("lmcache.", "").replace("lmcache_", "").removeprefix("mp.").removeprefix("mp_")
    right = MP_PREFIX + bare if MP_PREFIX + bare in MP_KEYS else near.match(entry.name, MP_KEYS, 0.8)
    exact = right == MP_PREFIX + bare and connector.extra is not None and connector.extra.entry(right) is None
    edits = mend.rename(judge.source, entry, right) if exact and right else ()
    judge.tell("key-mp-unknown", entry.key.start, launch, seen=entry.name, edits=edits, right=right or "leave it out",
               near=near.sentence(entry.name, right, MP_KEYS))


RULES = tuple(_each(rule) for rule in (_names, _roles, _fields, _keys))
