"""A tiny GGUF file of llama's shape: random weights, a vocabulary of bytes and a few words."""

from pathlib import Path

import numpy as np

WORDS = ("▁the", "▁a", "▁of", "▁and", "▁", "ing", "er", "on", "es", "ed", "th", "in")
CONTEXT, WIDTH, HEADS, LAYERS, HIDDEN = 2048, 32, 4, 2, 64


def write(path: Path, seed: int = 0) -> None:
    import gguf

    normal, byte, control = (
        int(kind) for kind in (gguf.TokenType.NORMAL, gguf.TokenType.BYTE, gguf.TokenType.CONTROL)
    )
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *WORDS]
    kinds = [control] * 3 + [byte] * 256 + [normal] * len(WORDS)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    draw = np.random.default_rng(seed)

    def matrix(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", draw.normal(0, 0.3, shape).astype(np.float32))

    def gain(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    matrix("token_embd", len(tokens), WIDTH)
    matrix("output", len(tokens), WIDTH)
    gain("output_norm")
    for layer in (f"blk.{n}" for n in range(LAYERS)):
        gain(f"{layer}.attn_norm")
        gain(f"{layer}.ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{layer}.{name}", WIDTH, WIDTH)
        matrix(f"{layer}.ffn_gate", HIDDEN, WIDTH)
        matrix(f"{layer}.ffn_up", HIDDEN, WIDTH)
        matrix(f"{layer}.ffn_down", WIDTH, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
