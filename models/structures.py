"""Structures of the nano models: Gemma 4 text shapes cut down, assistants, tokenizer files.

The layer patterns and switches are those of the published models; only the sizes
are small. Sliding windows are a multiple of 256 tokens, the block that the hybrid
KV cache and the connector's chunks share on CPU.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

from kvproof.nano import data

PAD_ID, EOS_ID, BOS_ID, TURN_END_ID = 0, 1, 2, data.SPECIALS.index("<turn|>")
MAX_POSITIONS = 8192
GROUP = ("sliding_attention",) * 5 + ("full_attention",)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class Structure:
    """One nano model: its target's text shape, its assistant's, and what it stands for."""

    name: str
    stands_for: str
    text: dict
    """Arguments of `Gemma4TextConfig` that differ from `COMMON`."""
    assistant: dict
    """Arguments of the assistant's text config that differ from `COMMON`."""
    steps: int
    """Training steps of the target that the committed weights had."""
    assistant_steps: int
    """The same for the assistant, rounded (its run was ended by time)."""
    unified: bool = False
    """Whether the checkpoint is `Gemma4UnifiedForConditionalGeneration`."""
    full_norm_start: float | None = None
    """Start of the target's full layers' query and key norms; None follows the head size."""


COMMON = {
    "vocab_size": data.VOCAB_SIZE,
    "max_position_embeddings": MAX_POSITIONS,
    "sliding_window": 512,
    "pad_token_id": PAD_ID,
    "eos_token_id": EOS_ID,
    "bos_token_id": BOS_ID,
    "tie_word_embeddings": True,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
}
_DENSE = {
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 6,
    "layer_types": list(GROUP),
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 30.0,
}
_DENSE_ASSISTANT = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "attention_k_eq_v": True,
}

STRUCTURES = {
    structure.name: structure
    for structure in (
        Structure("gemma4-nano-31b", "Gemma 4 31B (dense)", _DENSE, _DENSE_ASSISTANT, 7000, 1200),
        Structure(
            "gemma4-nano-e4b",
            "Gemma 4 E4B (per-layer inputs, cross-layer KV sharing)",
            {
                "hidden_size": 128,
                "intermediate_size": 384,
                "num_hidden_layers": 12,
                "layer_types": list(GROUP * 2),
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "global_head_dim": 64,
                "attention_k_eq_v": False,
                "hidden_size_per_layer_input": 16,
                "vocab_size_per_layer_input": data.VOCAB_SIZE,
                "num_kv_shared_layers": 6,
                "final_logit_softcapping": 30.0,
            },
            {
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_hidden_layers": 2,
                "layer_types": ["sliding_attention", "full_attention"],
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "global_head_dim": 64,
                "attention_k_eq_v": False,
            },
            5000,
            1100,
        ),
        Structure(
            "gemma4-nano-12b",
            "Gemma 4 12B (Unified)",
            _DENSE | {"sliding_window": 1024},
            _DENSE_ASSISTANT | {"sliding_window": 1024},
            6500,
            1150,
            unified=True,
            full_norm_start=0.6,
        ),
    )
}


def build_target(structure: Structure) -> Gemma4ForCausalLM:
    """A target's text model with fresh weights; seed torch before for repeatable ones."""
    model = Gemma4ForCausalLM(Gemma4TextConfig(**COMMON | structure.text))
    _soften_attention(model, structure.text["global_head_dim"], structure.full_norm_start)
    return model


def build_assistant(structure: Structure) -> Gemma4AssistantForCausalLM:
    """An MTP assistant with fresh weights for the structure's target."""
    layers = structure.assistant["num_hidden_layers"]
    text = COMMON | structure.assistant | {"num_kv_shared_layers": layers, "vocab_size_per_layer_input": 0}
    config = Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**text),
        backbone_hidden_size=structure.text["hidden_size"],
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=BOS_ID,
    )
    model = Gemma4AssistantForCausalLM(config)
    _soften_attention(model)
    return model


def save_target(structure: Structure, model: Gemma4ForCausalLM, folder: Path) -> None:
    """Writes the bf16 checkpoint, generation config and tokenizer of a target."""
    model = model.to("cpu", torch.bfloat16)
    if structure.unified:
        model = _unify(structure, model)
    _save(model, folder)


def save_assistant(structure: Structure, model: Gemma4AssistantForCausalLM, folder: Path) -> None:
    """Writes the bf16 checkpoint, generation config and tokenizer of an assistant."""
    model = model.to("cpu", torch.bfloat16)
    if structure.unified:
        from transformers import Gemma4UnifiedAssistantConfig, Gemma4UnifiedAssistantForCausalLM

        fields = {
            name: value
            for name, value in model.config.to_dict().items()
            if name not in ("model_type", "architectures", "transformers_version", "text_config", "dtype")
        }
        config = Gemma4UnifiedAssistantConfig(text_config=model.config.text_config, **fields)
        unified = Gemma4UnifiedAssistantForCausalLM(config).to(torch.bfloat16)
        unified.load_state_dict(model.state_dict())
        model = unified
    _save(model, folder)


def save_random_assistant(name: str, seed: int, folder: Path) -> None:
    """Writes an assistant that fits the target's shapes but was never trained: its drafts are refused.

    Raises:
        KeyError: no structure of that name.
    """
    torch.manual_seed(seed)
    save_assistant(STRUCTURES[name], build_assistant(STRUCTURES[name]), folder)


def save_tokenizer(folder: Path) -> None:
    """Writes the character tokenizer: fast tokenizer files that load offline."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    tokens = [*data.SPECIALS, *data.CHARACTERS]
    tokens += [f"<unused{index}>" for index in range(data.VOCAB_SIZE - len(tokens))]
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS_ID)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<|turn>", "<turn|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def _save(model, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=BOS_ID, pad_token_id=PAD_ID, eos_token_id=[EOS_ID, TURN_END_ID], do_sample=False
    )
    model.save_pretrained(folder)
    save_tokenizer(folder)


def _soften_attention(model, full_head_dim: int = 0, full_start: float | None = None) -> None:
    """Starts query and key norms low: Gemma 4 scales attention by 1, so weights of 1 would be far too sharp."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                start = full_start if weight.numel() == full_head_dim else None
                weight.fill_(start or weight.numel() ** -0.25)


def _unify(structure: Structure, text_model: Gemma4ForCausalLM):
    """Puts a trained text model into the Unified checkpoint layout, with no vision or audio part."""
    from transformers import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

    config = Gemma4UnifiedConfig(
        text_config=COMMON | structure.text | {"use_bidirectional_attention": None},
        vision_config=None,
        audio_config=None,
        # The published ids lie outside this vocabulary; these are unused tokens.
        image_token_id=120,
        video_token_id=121,
        audio_token_id=122,
        boi_token_id=123,
        eoi_token_id=124,
        boa_token_id=125,
        eoa_token_index=126,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=BOS_ID,
        tie_word_embeddings=True,
    )
    unified = Gemma4UnifiedForConditionalGeneration(config).to(torch.bfloat16)
    unified.model.language_model.load_state_dict(text_model.model.state_dict())
    unified.tie_weights()
    return unified
