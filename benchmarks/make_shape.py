"""Write a GGUF of a given Llama shape with random Q4_0 weights and another file's tokenizer: for speed only, its text is noise.

usage: python benchmarks/make_shape.py TOKENIZER.gguf OUT.gguf [--shape smollm2-135m|llama-3.2-1b] [--type q4_0|q8_0]
needs: pip install gguf
"""

from __future__ import annotations

import argparse

import gguf
import numpy as np

SHAPES = {  # layers, width, ffn, heads, kv heads, head width, rope base, context
    "smollm2-135m": (30, 576, 1536, 9, 3, 64, 100_000.0, 8192),
    "llama-3.2-1b": (16, 2048, 8192, 32, 8, 64, 500_000.0, 32_768),
}
BLOCK = {"q4_0": (gguf.GGMLQuantizationType.Q4_0, 18, 0.02 / 4.6), "q8_0": (gguf.GGMLQuantizationType.Q8_0, 34, 0.02 / 74)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer")
    parser.add_argument("out")
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPES)
    parser.add_argument("--type", default="q4_0", choices=BLOCK)
    arguments = parser.parse_args()
    write(arguments.tokenizer, arguments.out, arguments.shape, arguments.type)


def write(tokenizer: str, out: str, shape: str, kind: str) -> None:
    layers, width, ffn, heads, kv_heads, head_width, base, context = SHAPES[shape]
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(out, "llama")
    vocab = copy_tokenizer(gguf.GGUFReader(tokenizer), writer)
    writer.add_name(f"{shape}-random")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(base)
    writer.add_rope_dimension_count(head_width)
    writer.add_vocab_size(vocab)

    def quantized(name: str, n: int, k: int) -> None:
        """A random [n, k] matrix of standard deviation about 0.02, already in blocks of 32."""
        dtype, block_bytes, scale = BLOCK[kind]
        blocks = random.integers(0, 256, (n * k // 32, block_bytes), dtype=np.uint8)
        blocks[:, :2] = np.full(len(blocks), scale, np.float16).view(np.uint8).reshape(-1, 2)
        writer.add_tensor(name, blocks.reshape(n, -1), raw_dtype=dtype)

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    quantized("token_embd.weight", vocab, width)
    ones("output_norm.weight")
    for layer in range(layers):
        name = f"blk.{layer}."
        ones(name + "attn_norm.weight")
        ones(name + "ffn_norm.weight")
        quantized(name + "attn_q.weight", heads * head_width, width)
        quantized(name + "attn_k.weight", kv_heads * head_width, width)
        quantized(name + "attn_v.weight", kv_heads * head_width, width)
        quantized(name + "attn_output.weight", width, heads * head_width)
        quantized(name + "ffn_gate.weight", ffn, width)
        quantized(name + "ffn_up.weight", ffn, width)
        quantized(name + "ffn_down.weight", width, ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_tokenizer(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    for field in source.fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        value = field.contents()
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, value)
        else:
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add[type(value)](field.name, value)
    return len(source.fields["tokenizer.ggml.tokens"].contents())


if __name__ == "__main__":
    main()
