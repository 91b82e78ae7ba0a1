"""Reading metrics pages; captured ones show that the counters we name are those that the servers have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.connectors import lmcache_mp
from kvproof.engines import vllm
from kvproof.errors import ServerError
from kvproof.metrics import Counter, CounterReset, delta, ratio, read_page

PAGES = Path(__file__).parent / "fixtures" / "metrics"
HITS = Counter("hits_total", witness="lookups_total")
PAGE = """\
# HELP lookups_total Lookups.
# TYPE lookups_total counter
lookups_total{engine="0"} 5.0
lookups_total{engine="1"} 7.0
# TYPE by_source_total counter
by_source_total{engine="0",source="a"} 1.0
by_source_total{engine="0",source="b"} 2.0
by_source_total{engine="1",source="b"} 40.0
# TYPE seconds histogram
seconds_bucket{le="+Inf"} 3
seconds_count 3
seconds_sum 1.5
"""


def test_sums_over_labels_that_are_not_named() -> None:
    lookups, a, b = Counter("lookups_total"), Counter("by_source_total", {"source": "a"}), Counter(
        "by_source_total", {"source": "b"})
    assert read_page(PAGE, [lookups, a, b]) == {
        "lookups_total": 12.0, "by_source_total{source=a}": 1.0, "by_source_total{source=b}": 42.0,
    }


def test_a_missing_counter_is_not_in_the_reading() -> None:
    assert read_page(PAGE, [Counter("no_such_total"), Counter("by_source_total", {"source": "c"})]) == {}


def test_a_name_that_another_begins_with_is_not_taken_for_it() -> None:
    assert read_page("# TYPE hits_total_ever counter\nhits_total_ever 3\n", [Counter("hits_total")]) == {}


def test_a_counter_whose_witness_is_there_is_zero() -> None:
    assert read_page(PAGE, [HITS]) == {"hits_total": 0.0}
    assert read_page("# TYPE hits_total counter\nhits_total 2\n", [HITS]) == {"hits_total": 2.0}
    assert read_page("", [HITS]) == {}


@pytest.mark.parametrize("page", ["hits_total{ 1\n", "hits_total nonsense\n", 'hits_total{a="b} 1\n'])
def test_what_is_no_page_is_an_error(page: str) -> None:
    with pytest.raises(ServerError, match="not in Prometheus' format"):
        read_page(page, [HITS])


def test_a_page_of_something_else_has_no_counters() -> None:
    assert read_page("<html>hits</html>\n", [HITS]) == {}


def test_a_fresh_vllm_page_has_every_counter_at_zero() -> None:
    """Except those of speculative decoding, which that engine was started without."""
    page = (PAGES / "vllm-0.32.0.txt").read_text()
    reading = read_page(page, vllm.COUNTERS.values())
    assert reading == {c.key: 0.0 for c in vllm.COUNTERS.values() if "spec_decode" not in c.key}


def test_a_fresh_lmcache_page_shows_counters_only_after_their_first_increment() -> None:
    page = (PAGES / "lmcache-0.5.6.txt").read_text()
    assert read_page(page, lmcache_mp.COUNTERS.values()) == {"lmcache_mp_l1_memory_usage_bytes": 0.0}
    looked_up = page + '# TYPE lmcache_mp_lookup_requested_tokens_total counter\n' \
                       'lmcache_mp_lookup_requested_tokens_total{model="m"} 256.0\n'
    reading = read_page(looked_up, lmcache_mp.COUNTERS.values())
    assert reading["lmcache_mp_lookup_requested_tokens_total"] == 256
    assert reading["lmcache_mp_lookup_hit_tokens_total"] == 0
    assert "lmcache_mp_num_finished_stores_total" not in reading


def test_pages_at_the_end_of_a_real_run_agree() -> None:
    """Captured from a run whose recipe has 2 warm-ups; a run's folder is named by a word in them."""
    engine = read_page((PAGES / "vllm-0.32.0-used.txt").read_text(), vllm.COUNTERS.values())
    cache = read_page((PAGES / "lmcache-0.5.6-used.txt").read_text(), lmcache_mp.COUNTERS.values())
    assert cache.keys() == {c.key for c in lmcache_mp.COUNTERS.values()}
    by_source = [v for k, v in engine.items() if k.startswith("vllm:prompt_tokens_by_source")]
    assert len(by_source) == 3
    assert sum(by_source) == engine["vllm:prompt_tokens_total"] == 129_484
    external, local = engine["vllm:external_prefix_cache_hits_total"], engine["vllm:prefix_cache_hits_total"]
    assert cache["lmcache_mp_num_chunks_loaded_total"] * 256 == external == 37_120
    assert cache["lmcache_mp_lookup_hit_tokens_total"] == external + local
    l1, l2 = (cache[f"lmcache_mp_lookup_hit_{tier}_tokens_total"] for tier in ("l1", "l2"))
    assert l1 + l2 == cache["lmcache_mp_lookup_hit_tokens_total"]
    assert cache["lmcache_mp_num_submitted_stores_total"] == cache["lmcache_mp_num_finished_stores_total"] == 48


def test_how_much_it_grew() -> None:
    key = HITS.key
    assert delta({key: 3.0}, {key: 10.0}, HITS) == 7
    assert delta({}, {key: 10.0}, HITS) == 10
    assert delta({}, {}, HITS) is None


@pytest.mark.parametrize(("after", "said"), [({"hits_total": 2.0}, "from 3 back to 2"), ({}, "gone from the page")])
def test_a_counter_that_goes_backwards(after: dict[str, float], said: str) -> None:
    with pytest.raises(CounterReset, match=said):
        delta({"hits_total": 3.0}, after, HITS)


def test_a_ratio_over_nothing_is_unknown() -> None:
    assert ratio(1, 4) == 0.25
    assert ratio(0, 4) == 0
    assert ratio(1, 0) is ratio(None, 4) is ratio(1, None) is None


NUMBERS = st.integers(0, 2**50)


@given(values=st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), NUMBERS, max_size=12))
def test_every_sample_counts_once(values: dict[tuple[str, int], int]) -> None:
    lines = [f'x_total{{kind="{kind}",n="{n}"}} {value}' for (kind, n), value in values.items()]
    counters = [Counter("x_total"), *(Counter("x_total", {"kind": kind}) for kind in "ab")]
    reading = read_page("# TYPE x_total counter\n" + "\n".join(lines) + "\n", counters)
    for counter in counters:
        kind = counter.labels.get("kind")
        of_kind = [float(v) for (k, _), v in values.items() if kind in (None, k)]
        assert reading.get(counter.key) == (sum(of_kind) if of_kind else None)


@given(before=st.none() | NUMBERS, after=st.none() | NUMBERS)
def test_a_difference_is_never_negative(before: int | None, after: int | None) -> None:
    readings = [{} if v is None else {HITS.key: float(v)} for v in (before, after)]
    if before is not None and (after is None or after < before):
        with pytest.raises(CounterReset):
            delta(*readings, HITS)
    else:
        assert delta(*readings, HITS) == (None if after is None else after - (before or 0))
