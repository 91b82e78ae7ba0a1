"""Prometheus pages to counters, and the differences between two readings of one page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from .errors import ServerError


@dataclass(frozen=True)
class Counter:
    """One number on a metrics page, summed over all labels that are not named.

    Attributes:
        name: sample name as exposed, with any _total suffix.
        labels: labels that a sample must carry to count.
        witness: name of a sample that the same code path exposes. Some exporters (OpenTelemetry's among
            them) show a counter only after its first increment; when the witness is on the page and the
            counter is not, its value is 0. None: absent means unknown.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    witness: str | None = None

    @property
    def key(self) -> str:
        """How it is named in evidence: name{label=value}."""
        inside = ",".join(f"{k}={v}" for k, v in sorted(self.labels.items()))
        return f"{self.name}{{{inside}}}" if inside else self.name


Reading = dict[str, float]
"""Values by Counter.key; a counter that the page does not have is not in it."""


def read_page(text: str, wanted: Iterable[Counter]) -> Reading:
    """Values of the wanted counters on one page.

    Raises:
        ServerError: the text is not in Prometheus' exposition format.
    """
    wanted = list(wanted)
    names = {c.name for c in wanted} | {c.witness for c in wanted if c.witness}
    reading: Reading = {}
    present: set[str] = set()
    try:
        # Histogram buckets are most of a page and never wanted: dropping them first saves most of the parsing.
        lines = (line for line in text.splitlines() if line.startswith(tuple(names)) or line.startswith("# TYPE"))
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if sample.name not in names:
                    continue
                present.add(sample.name)
                for counter in wanted:
                    if counter.name == sample.name and counter.labels.items() <= sample.labels.items():
                        reading[counter.key] = reading.get(counter.key, 0.0) + sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise ServerError(f"a metrics page is not in Prometheus' format: {error}") from None
    for counter in wanted:
        if counter.key not in reading and counter.witness in present:
            reading[counter.key] = 0.0
    return reading


class CounterReset(ServerError):
    """A counter is lower than before: its process restarted or lied, so no difference can be trusted."""


def delta(before: Reading, after: Reading, counter: Counter) -> float | None:
    """How much a counter grew between two readings of one process.

    Returns:
        None when the second reading does not have it. A counter that only the second reading has grew
        from 0, because exporters create counters at their first increment.

    Raises:
        CounterReset: it went backwards.
    """
    end = after.get(counter.key)
    if end is None:
        if counter.key in before:
            raise CounterReset(f"counter {counter.key} was {before[counter.key]:g} and is gone from the page")
        return None
    start = before.get(counter.key, 0.0)
    if end < start:
        raise CounterReset(f"counter {counter.key} went from {start:g} back to {end:g}")
    return end - start


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole; None when either is unknown or the whole is zero."""
    if part is None or not whole:
        return None
    return part / whole
