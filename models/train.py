"""Trains one nano model and its MTP assistant, on data it makes.

    python models/train.py gemma4-nano-31b --out models

Seeded: every batch is a function of the seed and the step. Writes OUT/NAME (target)
and OUT/NAME/assistant; prints the training's own scores, which are teacher-forced
(the served scores are `evaluate.py`'s).
"""

import argparse
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import forward
import structures
import torch
import torch.nn.functional as F
from torch import nn

from kvproof.nano import data

SHORT_TOKENS, LONG_TOKENS, LONG_EVERY = 512, 4096, 5
"""Sequence lengths, and which share of the steps is long (each step has the same tokens)."""
EARLY_SHARE, EARLY_WINDOW_TOKENS = 0.3, 64
"""For this share of the steps, short sequences are seen through narrow sliding windows.

Else the sliding layers alone solve every recall within their window, and the full
layers, which alone reach further, never start to learn it (measured: recall at 2,000
tokens stayed at 0 over 500M tokens)."""
RECALL_SHARES = {"early": 0.6, "late": 0.2, "long": 0.7}
AHEAD = 24
"""Batches made ahead."""
DRAFT_STEPS = 4
DRAFT_WEIGHTS = (1.0, 0.7, 0.5, 0.4)
CONTEXT_WEIGHT = 0.05
"""Loss weight of tokens that are not part of an answer."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    steps: int
    rate: float
    """Peak learning rate."""
    warm_up: int
    limit_s: float = 0.0
    """When not 0, the schedule is squeezed to end by then, whatever `steps` says."""


@dataclass(frozen=True)
class Batch:
    """Training sequences of one length; ids and loss weights are [rows, length]."""

    ids: torch.Tensor
    weights: torch.Tensor
    window: int | None
    """The narrowed sliding window of early steps, or None."""


def make_batch(seed: int, step: int, early: bool, batch_tokens: int) -> tuple[int, bytes, bytes]:
    """One batch's sequence length, token ids, and answer flags, row after row."""
    is_long = step % LONG_EVERY == LONG_EVERY - 1
    length = LONG_TOKENS if is_long else SHORT_TOKENS
    share = RECALL_SHARES["long" if is_long else "early" if early else "late"]
    rng = random.Random(f"batch-{seed}-{step}")
    rows = [data.training_text(rng, length, share) for _ in range(max(1, batch_tokens // length))]
    return length, b"".join(data.token_ids(text) for text, _ in rows), b"".join(flags for _, flags in rows)


def batches(
    pool: ProcessPoolExecutor, seed: int, steps: int, early_steps: int, batch_tokens: int, device: str
) -> Iterator[Batch]:
    """Yields batches that the pool makes ahead."""
    waiting: deque = deque()
    for step in range(steps + AHEAD):
        if step < steps:
            waiting.append(pool.submit(make_batch, seed, step, step < early_steps, batch_tokens))
        if step < AHEAD and step < steps:
            continue
        if not waiting:
            return
        length, ids, flags = waiting.popleft().result()
        tensors = [torch.frombuffer(bytearray(part), dtype=torch.uint8).view(-1, length) for part in (ids, flags)]
        ids_t, flags_t = (tensor.to(device, non_blocking=True) for tensor in tensors)
        early = step - min(AHEAD, steps) < early_steps and length == SHORT_TOKENS
        yield Batch(ids_t.long(), torch.where(flags_t > 0, 1.0, CONTEXT_WEIGHT), EARLY_WINDOW_TOKENS if early else None)


def target_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Weighted next-token loss."""
    with torch.autocast(batch.ids.device.type, torch.bfloat16):
        _, hidden, _ = forward.run_target(model.model, batch.ids, batch.window)
        logits = forward.target_logits(model, hidden)
    weights = _ahead(batch.weights, 1)
    losses = F.cross_entropy(logits.flatten(0, 1), batch.ids.roll(-1, 1).flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def assistant_loss(target: nn.Module, assistant: nn.Module, batch: Batch) -> torch.Tensor:
    """Distils the target into the assistant over `DRAFT_STEPS` draft steps from every position.

    Step k starts at position p, sees the target's keys and values up to p, reads token
    p + 1 + k, and predicts token p + 2 + k as the target would at p + 1 + k.
    """
    ids, weights = batch.ids, batch.weights
    total = torch.zeros((), device=ids.device)
    with torch.autocast(ids.device.type, torch.bfloat16):
        with torch.no_grad():
            embeds, hidden, shared = forward.run_target(target.model, ids)
            wanted = forward.target_logits(target, hidden).softmax(-1)
        state = hidden
        for step in range(DRAFT_STEPS):
            logits, state = forward.run_assistant(assistant, embeds.roll(-1 - step, 1), state, shared)
            losses = F.cross_entropy(logits.flatten(0, 1), wanted.roll(-1 - step, 1).flatten(0, 1), reduction="none")
            ahead = _ahead(weights, 2 + step).flatten()
            total = total + DRAFT_WEIGHTS[step] * (losses * ahead).sum() / ahead.sum()
    return total / sum(DRAFT_WEIGHTS)


def fit(
    name: str,
    model: nn.Module,
    loss_of: Callable[[Batch], torch.Tensor],
    source: Iterator[Batch],
    schedule: Schedule,
    observe: Callable[[], object],
) -> int:
    """Trains with AdamW, a short warm-up and a linear fall to zero.

    Args:
        observe: called at each quarter, its result is printed.

    Returns:
        The number of steps made.
    """
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=schedule.rate, betas=(0.9, 0.95), fused=matrices[0].is_cuda)
    started, tokens, quarter, steps = time.monotonic(), 0, 1, 0
    for batch in source:
        progress = steps / schedule.steps
        if schedule.limit_s:
            progress = max(progress, (time.monotonic() - started) / schedule.limit_s)
        if progress >= 1:
            break
        if progress >= quarter / 4:
            print(f"{name} quarter {quarter} {json.dumps(observe())}", flush=True)
            quarter += 1
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate * min((steps + 1) / schedule.warm_up, 1 - progress)
        loss = loss_of(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += batch.ids.numel()
        steps += 1
        if steps in (1, LONG_EVERY) or steps % 200 < 2:
            print(
                f"{name} step {steps} of {batch.ids.shape[1]} tokens: loss {loss.item():.4f}, "
                f"{tokens / 1e6:.1f}M tokens in {time.monotonic() - started:.0f} s",
                flush=True,
            )
    print(f"{name} {steps} steps, {tokens / 1e6:.1f}M tokens, {time.monotonic() - started:.0f} s", flush=True)
    return steps


@torch.no_grad()
def check(target: nn.Module, assistant: nn.Module | None, device: str, count: int) -> dict:
    """Teacher-forced scores: share of held-out solutions reproduced token by token.

    With an assistant, also the share of answer tokens whose drafts up to step k all
    equal the target's choice.
    """
    result: dict = {}
    for split in ("easy", "hard", "needles"):
        if split == "needles":
            drawn = data.needles(7, count, 2000)
            texts = [(n.prompt, f" Record {n.key} holds {n.answer}. #### {n.answer}\n") for n in drawn]
            length = 2048
        else:
            drawn = data.problems(7, count, split)
            texts = [(data.few_shot(p, i, 600), f" {p.solution}\n") for i, p in enumerate(drawn)]
            length = 1024
        right = 0
        agreed, drafted = [0] * DRAFT_STEPS, 0
        for at in range(0, len(texts), 32):
            part = texts[at : at + 32]
            rows = [data.token_ids(data.BOS + prompt + answer).ljust(length, b"\0") for prompt, answer in part]
            ids = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(-1, length).to(device).long()
            flags = torch.zeros_like(ids, dtype=torch.bool)
            for row, (prompt, answer) in enumerate(part):
                flags[row, len(prompt) + 1 : len(prompt) + 1 + len(answer)] = True
            with torch.autocast(device, torch.bfloat16):
                embeds, hidden, shared = forward.run_target(target.model, ids)
                chosen = forward.target_logits(target, hidden).argmax(-1)
                wrong = (chosen != ids.roll(-1, 1)) & _ahead(flags, 1)
                right += int((~wrong.any(1)).sum())
                if assistant is None:
                    continue
                state, good = hidden, torch.ones_like(flags)
                ahead = _ahead(flags, 2) & _ahead(flags, 1 + DRAFT_STEPS)
                drafted += int(ahead.sum())
                for step in range(DRAFT_STEPS):
                    logits, state = forward.run_assistant(assistant, embeds.roll(-1 - step, 1), state, shared)
                    good &= logits.argmax(-1) == chosen.roll(-1 - step, 1)
                    agreed[step] += int((good & ahead).sum())
        result[split] = {"exact_ratio": round(right / len(texts), 4)}
        if drafted:
            result[split]["draft_agreement_ratio"] = [round(value / drafted, 4) for value in agreed]
    return result


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(structures.STRUCTURES))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="of the target; the structure's own number when left out")
    parser.add_argument("--assistant-steps", type=int)
    parser.add_argument("--batch-tokens", type=int, default=32768)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate of the target")
    parser.add_argument("--assistant-rate", type=float, default=2e-3)
    parser.add_argument("--assistant-limit-s", type=float, default=0.0, help="end the assistant's training by then")
    parser.add_argument("--stage", choices=("both", "target", "assistant"), default="both")
    parser.add_argument("--state", type=Path, help="target weights in float32, written after and read by the stages")
    parser.add_argument("--check-count", type=int, default=64)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()

    started = time.monotonic()
    pool = ProcessPoolExecutor(args.workers, mp_context=get_context("fork"))
    pool.submit(make_batch, 0, 0, False, 512).result()  # forked before any GPU use
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    structure = structures.STRUCTURES[args.name]
    folder = args.out / args.name

    target = structures.build_target(structure).to(device)
    forward.use_windowed_attention(target)
    if args.stage == "assistant":
        target.load_state_dict(torch.load(args.state, map_location=device))
    else:
        trainee = target if args.no_compile else _compiled_twin(structure, target)
        steps = args.steps or structure.steps
        source = batches(pool, args.seed, steps, int(EARLY_SHARE * steps), args.batch_tokens, device)
        fit(
            args.name,
            trainee,
            lambda batch: target_loss(trainee, batch),
            source,
            Schedule(steps, args.rate, 200),
            lambda: check(target, None, device, args.check_count),
        )
        if args.state:
            torch.save(target.state_dict(), args.state)
    for weight in target.parameters():  # the assistant learns from the weights that are served
        weight.data = weight.data.bfloat16().float()
        weight.requires_grad_(False)
    print(f"{args.name} target {json.dumps(check(target, None, device, args.check_count))}", flush=True)

    if args.stage != "target":
        torch.manual_seed(args.seed + 1)
        assistant = structures.build_assistant(structure).to(device)
        forward.use_windowed_attention(assistant)
        steps = args.assistant_steps or structure.assistant_steps
        source = batches(pool, args.seed + 1000, steps, 0, args.batch_tokens, device)
        fit(
            f"{args.name} assistant",
            assistant,
            lambda batch: assistant_loss(target, assistant, batch),
            source,
            Schedule(steps, args.assistant_rate, 100, args.assistant_limit_s),
            lambda: check(target, assistant, device, args.check_count),
        )
        print(f"{args.name} pair {json.dumps(check(target, assistant, device, args.check_count))}", flush=True)
        structures.save_assistant(structure, assistant, folder / "assistant")
    structures.save_target(structure, target, folder)
    pool.shutdown(cancel_futures=True)
    print(f"{args.name} done in {time.monotonic() - started:.0f}s", flush=True)
    return 0


def _compiled_twin(structure: structures.Structure, model: nn.Module) -> nn.Module:
    """A model that shares the other's weights, with compiled layers: checks run on the other, uncompiled."""
    twin = structures.build_target(structure).to(model.device)
    forward.use_windowed_attention(twin)
    twin.load_state_dict(model.state_dict(keep_vars=True), assign=True)
    twin.tie_weights()
    forward.compile_layers(twin)
    return twin


def _ahead(values: torch.Tensor, by: int) -> torch.Tensor:
    """Values `by` positions later; zero where the sequence has ended."""
    moved = values.roll(-by, 1)
    return torch.cat((moved[:, :-by], torch.zeros_like(moved[:, :by])), 1)


if __name__ == "__main__":
    sys.exit(main())
