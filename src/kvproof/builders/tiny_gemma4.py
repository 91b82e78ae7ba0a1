"""A tiny Gemma 4 text model with random weights, the same for the same seed.

usage: python tiny_gemma4.py OUT_FOLDER SPEC_JSON     SPEC: {"seed": 0, "config": {...}}

The structure is Gemma 4's: sliding and full attention interleaved with different head sizes. The tokenizer
has one token per byte, so every text has as many tokens as bytes, plus the one at the front.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|turn>{{ m['role'] }}\n{{ m['content'] }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate(SPECIAL)}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>",
        additional_special_tokens=["<|turn>", "<turn|>"], chat_template=CHAT_TEMPLATE,
    )


def build_model(seed: int, config: dict, vocabulary_size: int) -> Gemma4ForCausalLM:
    torch.manual_seed(seed)
    # One thread: the order of additions, and so every bit of the weights, must not depend on the host.
    torch.set_num_threads(1)
    layers = config["layer_types"]
    text_config = Gemma4TextConfig(
        **config, vocab_size=vocabulary_size, num_hidden_layers=len(layers), hidden_size_per_layer_input=0,
        num_kv_shared_layers=0, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )
    return Gemma4ForCausalLM(text_config).to(torch.bfloat16)


def main() -> None:
    out, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
    tokenizer = build_tokenizer()
    # A multiple of 64 rows keeps the output layer's shape one that every backend takes.
    size = -(-len(tokenizer) // 64) * 64
    model = build_model(spec["seed"], spec["config"], size)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main()
