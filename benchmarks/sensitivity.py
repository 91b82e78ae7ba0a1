"""How much damage a proof sees: 1% of the stored KV bytes changed, ten seeded tries per recipe.

usage: python benchmarks/sensitivity.py RECIPE… [--tries 10] [--json]

Each recipe is proven as usual; then, while its servers still live, every try changes the second tier's files with
another seed, clears the first tier, retrieves all prompts, and asks the comparison. The files are put back after
each try. Prints a Markdown table: tries in which the comparison turned red, and the smallest and median drift of
log-probabilities seen.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from kvproof.checks import comparison
from kvproof.checks.comparing import distance
from kvproof.connectors.lmcache_mp import DAMAGE_SHARE, second_tier_folder
from kvproof.console import Console
from kvproof.evidence import Verdict
from kvproof.run import Options, prove
from kvproof.session import Session


def measure(session: Session, tries: int) -> dict:
    """Verdicts and drifts of so many damaged retrievals."""
    assert session.cache is not None
    session.connector.drop_store(session.cache, session.layout)
    session.empty_engine_cache()
    session.send("stored_for_sensitivity")
    session.settle()
    stored, kept = second_tier_folder(session.layout), session.layout.folder / "undamaged"
    shutil.copytree(stored, kept)
    seen, drifts = 0, []
    for seed in range(1, tries + 1):
        session.connector.damage_store(session.cache, session.layout, seed)
        session.empty_engine_cache()
        result = session.send(f"damaged_{seed}")
        seen += comparison.judge_pass(session, result).verdict is Verdict.FAIL
        drifts.append(distance(session.passes["local_hit"].samples, result.samples).drift or 0.0)
        for path in kept.iterdir():
            shutil.copy2(path, stored / path.name)
    shutil.rmtree(kept)
    return {"tries": tries, "seen": seen, "changed_share": DAMAGE_SHARE, "drift_nats_min": min(drifts),
            "drift_nats_median": median(drifts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.recipes:
            outcome = prove(name, Options(evidence_dir=Path(folder)), Console(),
                            afterwards=lambda s, name=name: found.update({name: measure(s, arguments.tries)}))
            if outcome.record.header.verdict is not Verdict.PASS or name not in found:
                sys.exit(f"{name} was not proven, so its sensitivity means nothing: {outcome.record.header.reason}")
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print("| recipe | tries | seen | smallest drift | median drift |\n| --- | ---: | ---: | ---: | ---: |")
    for name, row in found.items():
        drifts = f"{row['drift_nats_min']:.4f} | {row['drift_nats_median']:.4f}"
        print(f"| {name} | {row['tries']} | {row['seen']} | {drifts} |")


if __name__ == "__main__":
    main()
