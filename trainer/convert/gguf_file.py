"""Writes a GGUF file, the format of llama.cpp and what is built on it: weights, sizes and, where
llama.cpp can tokenize as it does, the tokenizer.

The head is made by the package `gguf` (extra of the same name), from whose tables the names of keys
and tensors come. Tensors follow one at a time, each padded to 32 bytes. Layouts are those of
llama.cpp's converter: matrices of linear layers as (out, in); rows of Q and K of Llama in the order
in which neighbours are rotated; Q, K and V of GPT-NeoX one under the other.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.config import ModelConfig
from trainer.convert import lazy_tensors
from trainer.convert.lazy_tensors import LazyTensor, State

if TYPE_CHECKING:
    from gguf import GGUFWriter

NAME = "model.gguf"
ARCHITECTURES = {"gpt2": "gpt2", "gpt_neox": "gptneox", "llama": "llama"}
"""Family of ours -> llama.cpp's name of it."""
_ALIGNMENT = 32
_TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
_SIZES = {
    "gpt2": ("n_positions", "n_embd", "n_layer", "n_head", "n_inner"),
    "gpt_neox": (
        "max_position_embeddings",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    ),
}
_SIZES["llama"] = _SIZES["gpt_neox"]
"""Keys of config.json: context, width, layers, heads, width of the feed-forward part."""


def check_family(family: str, model: ModelConfig) -> None:
    """Raises ConfigError for a model that llama.cpp computes otherwise, or not at all."""
    if family not in ARCHITECTURES:
        raise ConfigError(
            f"--tgt-fmt gguf: family {family} cannot be written; expected a model of family "
            f"{', '.join(ARCHITECTURES)}"
        )
    if model.pos_scaling_factor != 1.0 or model.head_size * model.num_heads != model.hidden_size:
        raise ConfigError(
            "--tgt-fmt gguf: scaled rotary positions (model.pos_scaling_factor) and heads of "
            "another width than hidden_size / num_heads (model.attention_inner_dim) cannot be "
            "written; --tgt-fmt hf can"
        )
    if model.nonlinearity == "relu":
        raise ConfigError(
            f"--tgt-fmt gguf: model.nonlinearity is relu, but llama.cpp computes {family} with gelu"
        )


def describe_differences(hf_config: Mapping[str, Any]) -> str | None:
    """What llama.cpp computes a little otherwise, in words."""
    activation = hf_config.get("activation_function") or hf_config["hidden_act"]
    if activation != "gelu":
        return None
    return "llama.cpp approximates gelu by its tanh form, so logits differ a little"


def write_gguf(
    out: Path,
    tensors: State,
    hf_config: Mapping[str, Any],
    step: int,
    tokenizer: TokenizerDefinition | None,
) -> dict[str, storage.WrittenFile]:
    """model.gguf of Hugging Face's tensors and config.json. Raises ConfigError without the package
    `gguf`."""
    gguf = _import_gguf()
    family = str(hf_config["model_type"])
    writer = gguf.GGUFWriter(None, ARCHITECTURES[family])
    writer.add_name(f"{family}, step {step}")
    _add_sizes(writer, family, hf_config)
    if tokenizer is None:
        writer.add_tokenizer_model("none")
    else:
        _add_tokenizer(writer, tokenizer, int(hf_config["vocab_size"]))
    arranged = arrange_tensors(tensors, hf_config)
    for name, tensor in arranged.items():
        kind = gguf.GGMLQuantizationType[_kind(tensor)]
        shape, dtype = tensor.shape, np.dtype(np.float32)
        writer.add_tensor_info(name, shape, dtype, tensor.nbytes, raw_dtype=kind)
    head = _head(writer)
    return {NAME: storage.publish(out / NAME, _pieces(head, arranged))}


def _import_gguf() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise ConfigError(
            "--tgt-fmt gguf: the package gguf is missing; pip install 'wafermill[gguf]'"
        ) from error
    return gguf


def _add_sizes(writer: "GGUFWriter", family: str, hf: Mapping[str, Any]) -> None:
    context, width, layers, heads, inner = (int(hf[key]) for key in _SIZES[family])
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_feed_forward_length(inner)
    writer.add_vocab_size(int(hf["vocab_size"]))
    if family == "llama":
        writer.add_head_count_kv(int(hf["num_key_value_heads"]))
        writer.add_layer_norm_rms_eps(hf["rms_norm_eps"])
        writer.add_rope_dimension_count(int(hf["head_dim"]))
        writer.add_rope_freq_base(hf["rope_theta"])
    elif family == "gpt_neox":
        writer.add_rope_dimension_count(int(hf["rotary_pct"] * (width // heads)))
        writer.add_rope_freq_base(hf["rotary_emb_base"])
        writer.add_parallel_residual(bool(hf["use_parallel_residual"]))
        writer.add_layer_norm_eps(hf["layer_norm_eps"])
    else:
        writer.add_layer_norm_eps(hf["layer_norm_epsilon"])


def is_known_tokenizer(tokenizer: TokenizerDefinition) -> bool:
    """Whether llama.cpp cuts texts as this tokenizer does: byte-level BPE with GPT-2's pattern."""
    described = json.loads(tokenizer.json)
    before = described.get("pre_tokenizer") or {}
    return (
        described["model"].get("type") == "BPE"
        and described.get("normalizer") is None
        and before.get("type") == "ByteLevel"
        and before.get("use_regex", True)
        and not before.get("add_prefix_space")
    )


def _add_tokenizer(writer: "GGUFWriter", tokenizer: TokenizerDefinition, size: int) -> None:
    from gguf import TokenType

    described = json.loads(tokenizer.json)
    tokens = [f"[UNUSED{number}]" for number in range(size)]
    kinds = [TokenType.UNUSED] * size
    for text, number in described["model"]["vocab"].items():
        tokens[number], kinds[number] = text, TokenType.NORMAL
    for added in described.get("added_tokens", []):
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        tokens[added["id"]], kinds[added["id"]] = added["content"], kind
    merges = described["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_eos_token_id(tokenizer.eos_id)
    begin = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    writer.add_bos_token_id(begin)
    writer.add_add_bos_token(tokenizer.bos_id is not None)


def arrange_tensors(tensors: State, hf_config: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Tensors under llama.cpp's names and in its layouts; vectors and position embeddings in
    fp32, which it expects."""
    gguf = _import_gguf()
    family = str(hf_config["model_type"])
    architecture = next(
        arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[family]
    )
    _, _, layers, heads, _ = (int(hf_config[key]) for key in _SIZES[family])
    names = gguf.get_tensor_name_map(architecture, layers)
    arranged = {}
    for name, tensor in tensors.items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ConfigError(f"--tgt-fmt gguf: {ARCHITECTURES[family]} has no place for {name}")
        if family == "gpt2" and name.endswith(_TRANSPOSED):
            tensor = lazy_tensors.transpose(tensor)
        elif family == "llama" and ".self_attn.q_proj." in name:
            tensor = _pair_neighbours(tensor, heads)
        elif family == "llama" and ".self_attn.k_proj." in name:
            tensor = _pair_neighbours(tensor, int(hf_config["num_key_value_heads"]))
        elif family == "gpt_neox" and ".attention.query_key_value." in name:
            tensor = _part_by_kind(tensor, heads)
        if len(tensor.shape) == 1 or target.startswith("position_embd"):
            tensor = lazy_tensors.cast(tensor, torch.float32)
        arranged[target] = tensor
    return arranged


def _pair_neighbours(tensor: LazyTensor, heads: int) -> LazyTensor:
    """Row i of the first half of a head, then row i of the second."""
    rows = torch.arange(tensor.shape[0]).reshape(heads, 2, -1).transpose(1, 2).reshape(-1)
    return lazy_tensors.reorder_rows(tensor, rows)


def _part_by_kind(tensor: LazyTensor, heads: int) -> LazyTensor:
    """Q, K and V of a head one after the other become all of Q, all of K, all of V."""
    rows = torch.arange(tensor.shape[0]).reshape(heads, 3, -1).transpose(0, 1).reshape(-1)
    return lazy_tensors.reorder_rows(tensor, rows)


def _kind(tensor: LazyTensor) -> str:
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    if tensor.dtype not in kinds:
        raise ConfigError(f"--tgt-fmt gguf: weights in {tensor.dtype}; expected fp32, fp16 or bf16")
    return kinds[tensor.dtype]


def _head(writer: "GGUFWriter") -> bytes:
    """Everything before the data, padded."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / NAME
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        head = path.read_bytes()
    return head + bytes(-len(head) % _ALIGNMENT)


def _pieces(head: bytes, tensors: Mapping[str, LazyTensor]) -> Iterator[bytes | memoryview]:
    yield head
    for tensor in tensors.values():
        data = tensor.read().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield data.data
        yield bytes(-tensor.nbytes % _ALIGNMENT)
