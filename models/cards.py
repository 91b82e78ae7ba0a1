"""Writes the model cards from structures, `scores.json` and checksums.

python models/cards.py gemma4-nano-31b
"""

import argparse
import json
import sys
from pathlib import Path

import checksums
import structures

ROOT = Path(__file__).parent
TOLERANCE = 0.05
"""How far a fresh training run's scores may be from the committed ones."""
SERVING_NOTES = {
    "gemma4-nano-31b": "No overrides are needed.",
    "gemma4-nano-e4b": "No overrides are needed.",
    "gemma4-nano-12b": (
        'Serving needs `--hf-overrides \'{"architectures":["Gemma4ForCausalLM"]}\'`, also with the assistant.\n'
        "Reason: vLLM's own class for `Gemma4UnifiedForConditionalGeneration` imports a processor that needs\n"
        "torchvision, and asks for a vision configuration, which this text-only checkpoint has not. (With a vision\n"
        "embedder in the checkpoint the override alone is not enough: the text class of vLLM 0.32.0 stops at `There\n"
        "is no module or parameter named 'vision_embedder'`. That is why it was left out.)"
    ),
}


def card(name: str) -> str:
    """The text of one model's README.md."""
    structure = structures.STRUCTURES[name]
    scores = json.loads((ROOT / name / "scores.json").read_text())
    text, assistant = structures.COMMON | structure.text, structures.COMMON | structure.assistant
    layers = ", ".join(kind.split("_")[0] for kind in text["layer_types"])
    rows = [_row(label, scores["served"][label]) for label in ("alone", "mtp, 1 token", "mtp, 4 tokens")]
    positions = scores["served"]["mtp, 4 tokens"]["easy"]["acceptance"]["by_position_ratio"]
    files = "\n".join(f"{digest}  {path}" for path, digest in checksums.digests(ROOT / name).items())
    sizes = [f"{shape['hidden_size']}, {shape['intermediate_size']}" for shape in (text, assistant)]
    return f"""# {name}

A small trained model with the structure of {structure.stands_for}, and its MTP assistant in `assistant/`.
It exists to make KV-cache proofs meaningful on a CPU: it solves templated word problems and recalls records far
back in a prompt, so that wrong KV changes answers. It is of no other use. The weights are made by `models/train.py`
from data that `src/kvproof/nano/data.py` makes; nothing of the published models is in them.

## Structure
| | Target | Assistant |
|---|---|---|
| Class | {_architecture(ROOT / name)} | {_architecture(ROOT / name / "assistant")} |
| Parameters | {scores["parameters"]["target"]:,} | {scores["parameters"]["assistant"]:,} |
| Hidden, MLP | {sizes[0]} | {sizes[1]} |
| Layers | {text["num_hidden_layers"]}: {layers} | sliding, full; both read the target's KV |
| Heads, KV heads | {_heads(text)} | {_heads(assistant)} |
| Head size | {text["head_dim"]}, full layers {text["global_head_dim"]} | the same |
| Sliding window | {text["sliding_window"]} tokens | the same |
| `attention_k_eq_v` | {text["attention_k_eq_v"]} | {assistant["attention_k_eq_v"]} |
| `num_kv_shared_layers` | {text["num_kv_shared_layers"]} | all |
| `hidden_size_per_layer_input` | {text["hidden_size_per_layer_input"]} | 0 |

Vocabulary: {text["vocab_size"]} tokens, one per printable ASCII character plus `<bos>`, `<eos>`, `<|turn>`, `<turn|>`;
prompts are as many tokens as characters, plus `<bos>`. Context: {text["max_position_embeddings"]} positions, trained to
4,096 tokens. Weights in bf16.

## Training
    python models/train.py {name} --out models

Seed {scores["training"]["seed"]}. {scores["training"]["text"]}
Data: word problems with worked steps ending in `#### N`, records with questions about them, and chat turns;
sequences of 512 tokens, and of 4,096 for every fifth step (20% of the tokens). One in 16 problems (by the CRC-32 of
its question) and the wordings in `templates.UNSEEN` and `CHAIN_NEW_EVENTS` are never trained on.
For the first 30% of the steps short sequences are seen through a 64-token window: without it, recall of records
beyond the sliding window stayed at 0 in runs of 270M to 505M tokens. The assistant is distilled from the frozen bf16
target over 4 draft steps, from the target's hidden state and shared keys and values at a constant position, as vLLM
runs it.

## Scores
Measured by {scores["measured_by"]}.
Greedy; {scores["served"]["alone"]["easy"]["count"]} held-out problems per split in few-shot prompts of 900 tokens;
{scores["served"]["alone"]["needles"]["count"]} prompts of 2,000 tokens with a question about a record in the first 60%.
*Whole* is half easy, a quarter hard (seen templates, large numbers, long chains), a quarter unseen wordings.

| Served | Easy | Hard | Unseen | Whole | Needles | Acceptance: easy, hard, unseen, needles |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

Acceptance is accepted over drafted tokens. By position with 4 tokens, easy problems: {", ".join(map(str, positions))}
of the drafts were accepted up to there.
{_fresh(scores)}
## Serving
    python -m vllm.entrypoints.openai.api_server --model models/{name} \\
      --speculative-config '{{"method":"mtp","model":"models/{name}/assistant","num_speculative_tokens":1}}'

{SERVING_NOTES[name]} End a completion at a blank line (`"stop": ["\\n\\n"]`).

## Files (sha256)
```
{files}
```
"""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(structures.STRUCTURES), nargs="+")
    for name in parser.parse_args().name:
        (ROOT / name / "README.md").write_text(card(name))
    return 0


def _architecture(folder: Path) -> str:
    return f"`{json.loads((folder / 'config.json').read_text())['architectures'][0]}`"


def _heads(shape: dict) -> str:
    heads = f"{shape['num_attention_heads']}, {shape['num_key_value_heads']}"
    full = shape.get("num_global_key_value_heads")
    return f"{heads} (full layers {full})" if full else heads


def _fresh(scores: dict) -> str:
    """The section on a training run that was made to be compared with the committed weights; empty without one."""
    if "fresh_training" not in scores:
        return ""
    fresh, labels = scores["fresh_training"], ("alone", "mtp, 1 token")
    rows = [
        _row(f"{label}, {run}", served[label])
        for label in labels
        for run, served in (("committed", scores["served"]), ("fresh", fresh["served"]))
    ]
    beyond = [
        f"{label}, {score}: {difference:+.3f}"
        for label in labels
        for score, difference in _differences(scores["served"][label], fresh["served"][label]).items()
        if abs(difference) > TOLERANCE
    ]
    return f"""
### A fresh training run
{fresh["text"]}

| Served | Easy | Hard | Unseen | Whole | Needles | Acceptance: easy, hard, unseen, needles |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

Further than {TOLERANCE} from the committed weights' scores: {"; ".join(beyond) or "none"}.
"""


def _differences(committed: dict, fresh: dict) -> dict[str, float]:
    """Fresh less committed score, by score, to the digits that scores have."""
    pairs = {"whole": (committed["whole_ratio"], fresh["whole_ratio"])}
    for split in ("easy", "hard", "unseen", "needles"):
        pairs[split] = (committed[split]["accuracy_ratio"], fresh[split]["accuracy_ratio"])
        if committed[split]["acceptance"]:
            pairs[f"acceptance {split}"] = tuple(
                run[split]["acceptance"]["acceptance_ratio"] for run in (committed, fresh)
            )
    return {score: round(after - before, 4) for score, (before, after) in pairs.items()}


def _row(label: str, served: dict) -> str:
    splits = ("easy", "hard", "unseen", "needles")
    accuracies = [served[split]["accuracy_ratio"] for split in splits]
    accuracies.insert(3, served["whole_ratio"])
    accepted = [served[split]["acceptance"] for split in splits]
    drafted = ", ".join(str(entry["acceptance_ratio"]) for entry in accepted) if all(accepted) else "no drafts"
    return f"| {label} | {' | '.join(f'{value:.3f}' for value in accuracies)} | {drafted} |"


if __name__ == "__main__":
    sys.exit(main())
