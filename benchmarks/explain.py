"""How fast `./inv explain` reads a log, with how much memory, and what ten times as many signatures cost.

    python benchmarks/explain.py                      # 1 GB, 100 and 1,000 signatures
    python benchmarks/explain.py --mb 200 --forms     # smaller; coloured, JSON, gzip and a crash loop too

The log is one of a busy engine and its cache server; near its end stands the one failure that must be found. Signatures
are kvproof's own, and made-up ones of the same kind up to the number asked for; their files are read, checked and
compiled within the time given. Every measurement runs in a process of its own, on one core; seconds are CPU time,
because other work may share the core.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import yaml

from kvproof import explain
from kvproof.explain import inputs
from kvproof.signatures import FOLDER, load

FAILURE = (b"(EngineCore pid=98) ERROR 07-30 17:01:09 [core.py:1197] RuntimeError: Cannot copy between CPU and CUDA "
           b"tensors during CUDA graph capture unless the CPU tensor is pinned.\n")
FOUND = "graph-capture-unpinned"
START = (b"(APIServer pid=7) INFO 12-01 03:29:20 [api_server.py:1755] vLLM API server version 0.28.0\n"
         b"(APIServer pid=7) INFO 12-01 03:29:20 [utils.py:286] non-default args: {'model': 'google/gemma-4-31B-it', "
         b"'kv_transfer_config': KVTransferConfig(kv_connector='LMCacheMPConnector', kv_role='kv_both')}\n")
PIECE_BYTES = 8 * 1024 * 1024
VOCABULARY = """block cache cannot capture chunk config connector copy device draft engine error failed failure graph
group hash head hybrid invalid key layer load memory missing model offload page pinned pool register request server
shape size store tensor timeout token transfer type unknown unsupported version window worker"""


def busy_lines(r: random.Random, coloured: bool) -> Iterator[str]:
    """What an engine with LMCache and its cache server write under load, without end."""
    cyan, green, slanted, off = ("\x1b[0;36m", "\x1b[32;20m", "\x1b[3m", "\x1b[0m") if coloured else ("",) * 4
    while True:
        at = f"12-01 {r.randrange(24):02}:{r.randrange(60):02}:{r.randrange(60):02}"
        chunks, took = r.randrange(1, 40), r.random() / 50
        for _ in range(r.randrange(1, 8)):
            yield (f"INFO:     10.0.{r.randrange(256)}.{r.randrange(256)}:{r.randrange(65536)} - "
                   '"POST /v1/completions HTTP/1.1" 200 OK')
        for said, place in (
            (f"Prefetch request completed (L1+L2): {chunks}/{chunks} retained keys (0 L1, {chunks} L2) in "
             f"{took * 1000:.1f} ms (external_request_id=cmpl-{r.getrandbits(64):016x}-0, prefetch_request_id="
             f"{r.randrange(10**6)})", "storage_manager.py:651:lmcache.v1.distributed.storage_manager"),
            (f"{r.choice(['Stored', 'Retrieved'])} {256 * chunks} tokens in {took:.3f} seconds",
             "lmcache_driven_transfer.py:1100:lmcache.v1.multiprocess.modules.lmcache_driven_transfer"),
        ):
            yield f"{green}[2026-{at},{r.randrange(1000):03}] LMCache INFO:{off} {said} {slanted}({place}){off}"
        if r.random() < 0.3:
            yield (f"{cyan}(APIServer pid=7){off} INFO {at} [loggers.py:335] Engine 000: "
                   f"Avg prompt throughput: {r.random() * 5000:.1f} tokens/s, "
                   f"Avg generation throughput: {r.random() * 500:.1f} tokens/s, Running: {r.randrange(64)} reqs, "
                   f"Waiting: {r.randrange(9)} reqs, GPU KV cache usage: {r.random() * 100:.1f}%, "
                   f"Prefix cache hit rate: {r.random() * 90:.1f}%, "
                   f"External prefix cache hit rate: {r.random() * 60:.1f}%")


def make_log(path: Path, size_bytes: int, form: str) -> None:
    r = random.Random(1)
    lines = busy_lines(r, coloured=form in ("coloured", "json"))
    pieces = []
    for _ in range(4):
        piece: list[str] = []
        while sum(map(len, piece[-1000:])) * max(1, len(piece) // 1000) < PIECE_BYTES:
            piece += [next(lines) for _ in range(1000)]
        pieces.append(("\n".join(piece) + "\n").encode())
    if form == "json":
        pieces = [b"".join(json.dumps({"log": line.decode() + "\n", "stream": "stderr",
                                       "time": "2026-12-01T03:34:27.212345678Z"}).encode() + b"\n"
                           for line in piece.splitlines()) for piece in pieces]
    if form == "crash loop":
        pieces = [b"".join(START + piece[n:n + 40_000].rpartition(b"\n")[0] + b"\n" + FAILURE
                           for n in range(0, len(piece), 40_000)) for piece in pieces]
    written = 0
    with (gzip.open(path, "wb", compresslevel=1) if form == "gzip" else path.open("wb")) as file:
        while written < size_bytes:
            written += file.write(START if not written else r.choice(pieces))
        file.write(FAILURE + "\n".join(next(lines) for _ in range(20)).encode())


def make_signatures(folder: Path, count: int) -> None:
    """kvproof's own, and others like them."""
    own = sorted(FOLDER.glob("*.yaml"))
    for path in own[:count]:
        shutil.copy(path, folder)
    r, words = random.Random(2), VOCABULARY.split()
    for number in range(count - len(own)):
        sentence = " ".join(r.choices(words, k=r.randrange(4, 9))).capitalize()
        regex = rf"{sentence}: \d+ (?:bytes|GiB).*{r.choice(words)}"
        pattern = {"literal": sentence} if number % 3 else {"regex": regex}
        (folder / f"made-up-{number}.yaml").write_text(yaml.safe_dump({
            "id": f"made-up-{number}", "title": sentence, "log": "engine", "severity": "error", "any_of": [pattern],
            "cause": " ".join(r.choices(words, k=40)), "fix": " ".join(r.choices(words, k=30)), "engine": "vllm",
            "versions": {"vllm": f"<0.{r.randrange(10, 40)}"}, "link": f"https://example.org/{number}",
            "positive": [f"ERROR {sentence}: 1 bytes"], "negative": [" ".join(r.choices(words, k=20))],
        }, sort_keys=False))


def memory_bytes(name: str) -> int:
    """Of this process: VmRSS now, or VmHWM at most. Unlike getrusage's, they do not begin with the parent's."""
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))
    return int(found.split()[1]) * 1024


def measure(log: Path, folder: Path, size_bytes: int) -> dict[str, float]:
    """In a process of its own: read everything as the command does."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    before = memory_bytes("VmRSS")
    started, cpu = time.perf_counter(), time.process_time()
    patterns = explain.Patterns(load(folder))
    ready_cpu = time.process_time()
    found = explain.explained([inputs.from_file(log)], patterns=patterns, strict=True)
    done, done_cpu = time.perf_counter(), time.process_time()
    assert FOUND in [m.signature.id for m in found.matches], found.status
    return {
        "signatures": len(patterns.signatures), "prepare_s": ready_cpu - cpu, "read_s": done_cpu - ready_cpu,
        "wall_s": done - started, "mb_per_s": size_bytes / 1e6 / (done_cpu - cpu),
        "growth_mib": (memory_bytes("VmHWM") - before) / 1024**2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000, help="size of the log, megabytes of text")
    parser.add_argument("--signatures", default="100,1000", help="numbers of signatures")
    parser.add_argument("--forms", action="store_true", help="measure coloured, JSON, gzip and crash-loop logs too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    counts = [int(count) for count in options.signatures.split(",")]
    forms = ["plain", *(["coloured", "json", "gzip", "crash loop"] if options.forms else [])]

    rows = []
    with tempfile.TemporaryDirectory(prefix="kvproof-benchmark-") as temporary:
        folders = {}
        for count in counts:
            folders[count] = Path(temporary) / f"signatures-{count}"
            folders[count].mkdir()
            make_signatures(folders[count], count)
        for form in forms:
            log = Path(temporary) / ("log.gz" if form == "gzip" else "log")
            make_log(log, options.mb * 1_000_000, form)
            size_bytes = options.mb * 1_000_000 if form == "gzip" else log.stat().st_size
            for count in counts:
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                    found = pool.submit(measure, log, folders[count], size_bytes).result()
                rows.append({"form": form, "mb": size_bytes / 1e6} | found)
            log.unlink()
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("| Log | MB | Signatures | Prepare (s) | Read (s) | MB/s, all of it | Memory growth (MiB) | Wall (s) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        print(f"| {row['form']} | {row['mb']:.0f} | {row['signatures']} | {row['prepare_s']:.2f} | {row['read_s']:.2f} "
              f"| {row['mb_per_s']:.0f} | {row['growth_mib']:.0f} | {row['wall_s']:.1f} |")


if __name__ == "__main__":
    main()
