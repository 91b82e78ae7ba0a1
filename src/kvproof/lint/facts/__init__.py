"""What lint knows, as data: every kind of finding with its texts, the versions it holds for, and where that is said.

Read in released wheels and in public reports; `shared/facts` of the project has the reading.
"""

from __future__ import annotations

from ..finding import Fact
from . import lmcache, models, native, places, writing

FACTS: dict[str, Fact] = {}
for _part in (writing, native, models, places, lmcache):
    _double = FACTS.keys() & _part.FACTS.keys()
    assert not _double, f"two facts are called {_double}"
    FACTS |= _part.FACTS
