"""Forward passes for training, over the transformers modules that are saved.

Attention runs without padding masks: plain causal where the window covers the
sequence, else block-wise, so that 4,096-token sequences stay cheap.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface

ATTENTION = "windowed_causal"


def windowed_causal(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float = 1.0,
    sliding_window: int | None = None,
    training_window: int | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Causal attention in which a position sees itself and `sliding_window - 1` before it.

    Args:
        query: [batch, heads, length, head_dim]; key and value may have fewer heads.
        sliding_window: None means unlimited; else it divides the length or exceeds it.
        training_window: a smaller window to use instead, where there is one at all.

    Returns:
        The output as [batch, length, heads, head_dim], and None for the weights.
    """
    if sliding_window is not None and training_window is not None:
        sliding_window = training_window
    length = query.shape[2]
    key, value = key.to(query.dtype), value.to(query.dtype)
    if sliding_window is None or length <= sliding_window:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2), None

    window, heads = sliding_window, query.shape[1]
    first = F.scaled_dot_product_attention(
        query[:, :, :window], key[:, :, :window], value[:, :, :window], is_causal=True, scale=scaling, enable_gqa=True
    )
    row = torch.arange(window, device=query.device)[:, None]
    column = torch.arange(2 * window, device=query.device)[None, :]
    seen = (column > row) & (column <= row + window)
    rest = F.scaled_dot_product_attention(
        _blocks(query[:, :, window:], window, window),
        _blocks(key, 2 * window, window).repeat_interleave(heads // key.shape[1], 1),
        _blocks(value, 2 * window, window).repeat_interleave(heads // key.shape[1], 1),
        attn_mask=seen,
        scale=scaling,
    )
    batch, count = query.shape[0], length // window - 1
    rest = rest.view(batch, count, heads, window, -1).transpose(1, 2).reshape(batch, heads, length - window, -1)
    return torch.cat((first, rest), 2).transpose(1, 2), None


AttentionInterface.register(ATTENTION, windowed_causal)


def use_windowed_attention(model: nn.Module) -> None:
    """Makes every text layer of a target or an assistant attend through `windowed_causal`."""
    for module in model.modules():
        if hasattr(module, "config"):
            module.config.get_text_config()._attn_implementation = ATTENTION


def compile_layers(model: nn.Module) -> None:
    """Compiles each decoder layer; equal layers share their compiled code."""
    torch._dynamo.config.recompile_limit = 64
    for layer in model.model.layers:
        layer.compile(dynamic=False)


def run_target(
    text: nn.Module, ids: torch.Tensor, training_window: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Runs a Gemma 4 text model over whole sequences.

    Args:
        training_window: narrows the sliding layers' window, see `windowed_causal`.

    Returns:
        Scaled token embeddings and final normed hidden states, both
        [batch, length, hidden] in bf16, and the keys and values shared by layer type.
    """
    embeds = text.embed_tokens(ids).to(torch.bfloat16)
    per_layer = None
    if text.hidden_size_per_layer_input:
        per_layer = text.project_per_layer_inputs(embeds, text.get_per_layer_inputs(ids, embeds)).to(torch.bfloat16)
    shared: dict = {}
    hidden = _run_layers(text, embeds, per_layer, shared, training_window)
    return embeds, hidden, shared


def target_logits(model: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Logits of a target with its soft cap, in float32."""
    logits = model.lm_head(hidden).float()
    cap = model.config.final_logit_softcapping
    return logits if cap is None else torch.tanh(logits / cap) * cap


def run_assistant(
    assistant: nn.Module, embeds: torch.Tensor, state: torch.Tensor, shared: dict
) -> tuple[torch.Tensor, torch.Tensor]:
    """One draft step for every position at once.

    Args:
        embeds: the target's scaled embedding of the token after each position.
        state: the target's hidden state at each position, or the last step's output.
        shared: the target's keys and values; a position sees them up to itself in
            every step, since the engine keeps the draft position constant.

    Returns:
        Draft logits in float32 and the state for the next step.
    """
    hidden = assistant.pre_projection(torch.cat((embeds, state), -1))
    hidden = _run_layers(assistant.model, hidden, None, shared, None)
    return assistant.lm_head(hidden).float(), assistant.post_projection(hidden)


def _run_layers(
    text: nn.Module,
    hidden: torch.Tensor,
    per_layer: torch.Tensor | None,
    shared: dict,
    training_window: int | None,
) -> torch.Tensor:
    positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
    kinds = text.config.layer_types
    rotary = {kind: text.rotary_emb(hidden, positions, kind) for kind in dict.fromkeys(kinds)}
    for index, layer in enumerate(text.layers):
        hidden = layer(
            hidden,
            None if per_layer is None else per_layer[:, :, index],
            shared_kv_states=shared,
            position_embeddings=rotary[kinds[index]],
            attention_mask=None,
            training_window=training_window,
        )
    return text.norm(hidden)


def _blocks(states: torch.Tensor, size: int, step: int) -> torch.Tensor:
    """Cuts [batch, heads, length, dim] into overlapping blocks: [batch * count, heads, size, dim]."""
    cut = states.unfold(2, size, step).permute(0, 2, 1, 4, 3)
    return cut.reshape(-1, *cut.shape[2:])
