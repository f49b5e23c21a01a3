"""What a tokenizer is (its `tokenizer.json`, the size of its vocabulary, BOS and EOS), and ids to
bytes.

The JSON is brought to one form: `truncation` and `padding` are dropped, because they would cut or
fill documents, and keys are sorted, so that the hash depends on nothing but the content.
`tokenizers` itself reads it once, here, so what it refuses never reaches a worker. A model with BPE
dropout is refused (its ids are random). The token that the file has `tokenizers` put before a text
(BOS, CLS) begins a document; another one, or none, is written into the JSON, which so says the same
to whoever reads it from a run. What it puts behind a text is not used: each document has its EOS.

Byte-level tokenizers give every token its exact bytes, so any slice of a stream decodes. Others
decode by `tokenizers`, whole texts only and not always exactly.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from dedup.user_cache import keep_cached, read_cached
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.hashes import hash_bytes, read_at_most
from pipeline.core.shipped import gpt2_vocabulary

PAD = "<pad>"
GPT2 = "gpt2"
_GPT2_EOS, _GPT2_EOS_ID = "<|endoftext|>", 50256
_GPT2_HASH = "fb8c86e3fee5ecf887dc2f81ca1cce8f"
"""Of the shipped vocabulary's JSON in its one form."""
_LARGEST_FILE = 1 << 28
_SENTENCEPIECE = (".model", ".spm")
_SIBLINGS = ("tokenizer_config.json", "special_tokens_map.json")

Bos = str | int | Literal[False] | None
"""A token that begins a document, by string or id; False: none; None: as the file has it."""


@dataclass(frozen=True, kw_only=True)
class TokenizerDefinition:
    """A tokenizer by content: equal hashes mean equal ids and an equal EOS."""

    name: str = field(compare=False)
    """`gpt2`, or the path of the file."""
    json: str = field(repr=False)
    """The `tokenizer.json` in its one form."""
    vocab_size: int
    """Largest id plus one, added tokens included."""
    eos_token: str
    eos_id: int
    bos_token: str | None = None
    """What begins a document; None: its text does. The JSON says so too."""
    bos_id: int | None = None
    engine: str | None = None
    """The engine to use; None: the fastest that gives the ids of `tokenizers`."""

    @functools.cached_property
    def content_hash(self) -> str:
        """xxh3-128 of the JSON, which has the BOS, and the EOS id: part of every fingerprint that
        depends on ids."""
        return hash_bytes(f"{self.eos_id}\n{self.json}".encode())

    @property
    def markers(self) -> tuple[int, ...]:
        """The ids that no text becomes: EOS, and BOS where there is one."""
        return (self.eos_id,) if self.bos_id is None else (self.eos_id, self.bos_id)

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16 where every id fits, else uint32."""
        return np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    @property
    def added_tokens(self) -> tuple[str, ...]:
        """Strings of the added tokens, special ones included, in the order of the file."""
        return tuple(token["content"] for token in json.loads(self.json).get("added_tokens") or [])

    @property
    def special_ids(self) -> dict[str, int]:
        """Added tokens that are special -> their ids."""
        added = json.loads(self.json).get("added_tokens") or []
        return {str(each["content"]): int(each["id"]) for each in added if each.get("special")}

    @property
    def decoder_start_id(self) -> int:
        """What a decoder behind an encoder reads first: the pad token, as in T5, else the EOS."""
        return self.special_ids.get(PAD, self.eos_id)


def reference_tokenizer(definition: TokenizerDefinition) -> Tokenizer:
    """The oracle: `tokenizers` with `encode_special_tokens`, so special-token strings are text."""
    tokenizer = Tokenizer.from_str(definition.json)
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_definition(
    tokenizer: str | Path = GPT2,
    eos: str | int | None = None,
    special_tokens: Sequence[str] = (),
    bos: Bos = None,
) -> TokenizerDefinition:
    """The shipped GPT-2 vocabulary (`gpt2`), or a `tokenizer.json`, or a directory that holds one.

    `eos` is the token that ends a document, as its string or its id. By default it is `eos_token`
    of the `tokenizer_config.json` (or `special_tokens_map.json`) beside the file, else the only
    special token of the file. `bos` is the token that begins one, and False is none; by default it
    is what the file has `tokenizers` put before a text, unless that is the EOS. The text of
    `special_tokens` becomes those tokens; that of all other special tokens stays text. Raises
    ConfigError naming the file and what to do.

    >>> definition = load_definition("gpt2")
    >>> definition.vocab_size, definition.eos_token, definition.eos_id, str(definition.dtype)
    (50257, '<|endoftext|>', 50256, 'uint16')
    """
    if tokenizer == GPT2:
        return _define_shipped(_GPT2_EOS if eos is None else eos, tuple(special_tokens), bos)
    path = _find_file(Path(tokenizer))
    content = _with_tokens_in_text(str(path), _read_object(path), special_tokens)
    return _define(str(path), content, eos, bos)


@functools.lru_cache(maxsize=4)
def _define_shipped(
    eos: str | int, special_tokens: tuple[str, ...], bos: Bos
) -> TokenizerDefinition:
    if eos != _GPT2_EOS or special_tokens or (bos is not None and bos is not False):
        return _define(GPT2, _with_tokens_in_text(GPT2, _gpt2_json(), special_tokens), eos, bos)
    kept = "tokenizers", f"{_GPT2_HASH}.json"
    data = read_cached(*kept)
    if data is None:
        data = _canonical(_gpt2_json()).encode()
        keep_cached(data, *kept)
    return restore_definition(GPT2, data, _GPT2_EOS_ID)


def _with_tokens_in_text(
    name: str, content: dict[str, Any], tokens: Sequence[str]
) -> dict[str, Any]:
    """The same with these special tokens marked as ordinary added ones, which text can become."""
    if not tokens:
        return content
    added = [t for t in content.get("added_tokens") or [] if isinstance(t, dict)]
    special = {token.get("content") for token in added if token.get("special")}
    unknown = sorted(set(tokens) - special)
    if unknown:
        raise ConfigError(
            f"{name}: tokenize.special_tokens: the tokenizer has no special token {unknown[0]!r}"
        )
    marked = [{**t, "special": False} if t.get("content") in tokens else t for t in added]
    return {**content, "added_tokens": marked}


@functools.lru_cache(maxsize=4)
def restore_definition(name: str, data: bytes, eos_id: int) -> TokenizerDefinition:
    """The definition whose JSON was kept as `data`, for example in a run directory."""
    if eos_id == _GPT2_EOS_ID and hash_bytes(data) == _GPT2_HASH:
        # `tokenizers` would take long to say the same of it
        return TokenizerDefinition(
            name=name,
            json=data.decode(),
            vocab_size=_GPT2_EOS_ID + 1,
            eos_token=_GPT2_EOS,
            eos_id=_GPT2_EOS_ID,
        )
    return _define(name, json.loads(data), eos_id)


def _define(
    name: str, content: dict[str, Any], eos: str | int | None, bos: Bos = None
) -> TokenizerDefinition:
    _check_model(name, content)
    content = _without_control_pieces(content)
    tokenizer = _read(name, _canonical(content))
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if eos is None:
        eos = _eos_beside(Path(name), content)
    token, number = _find_marker(name, tokenizer, eos, "end")
    leading = _find_leading(content.get("post_processor"))
    wanted = _choose_bos(name, leading, token) if bos is None else bos
    first, first_id = None, None
    if wanted is not None and wanted is not False:
        first, first_id = _find_marker(name, tokenizer, wanted, "begin")
    if first == token:
        raise ConfigError(
            f"{name}: {token!r} ends documents, so it is before the next one anyway: leave "
            "tokenize.bos out, or name another token"
        )
    if leading != ([] if first is None else [first]):
        content = {**content, "post_processor": _beginning(content, first, first_id)}
    return TokenizerDefinition(
        name=name,
        json=_canonical(content),
        vocab_size=max(vocabulary.values()) + 1,
        eos_token=token,
        eos_id=number,
        bos_token=first,
        bos_id=first_id,
    )


def _read(name: str, text: str) -> Tokenizer:
    try:
        return _parse(text)
    except Exception as error:  # what `tokenizers` raises
        raise ConfigError(
            f"{name}: `tokenizers` cannot read it: {escape_text(str(error))}"
        ) from error


def _find_leading(step: Mapping[str, Any] | None) -> list[str]:
    """What a post-processor puts before a text, as the formats of `tokenizers` say it."""
    step = step or {}
    match step.get("type"):
        case "Sequence":  # each puts its own before that of those before it
            return [t for one in reversed(step["processors"]) for t in _find_leading(one)]
        case "BertProcessing" | "RobertaProcessing":
            return [step["cls"][0]]
        case "TemplateProcessing":
            before = takewhile(lambda piece: "SpecialToken" in piece, step["single"])
            names = [piece["SpecialToken"]["id"] for piece in before]
            return [token for name in names for token in step["special_tokens"][name]["tokens"]]
    return []


def _choose_bos(name: str, leading: Sequence[str], eos: str) -> str | None:
    """What begins a document where nobody said. Raises ConfigError where that is not clear."""
    if len(leading) > 1:
        raise ConfigError(
            f"{name}: it puts {len(leading)} tokens before a text ({', '.join(leading)}); name the "
            "one that begins a document with tokenize.bos, or none with tokenize.bos: false"
        )
    return leading[0] if leading and leading[0] != eos else None


def _beginning(
    content: dict[str, Any], token: str | None, number: int | None
) -> dict[str, Any] | None:
    """The `post_processor` that puts a token before a text, and nothing anywhere else; what it does
    to offsets stays."""
    steps = content.get("post_processor") or {}
    nested = steps.get("processors", []) if steps.get("type") == "Sequence" else [steps]
    kept = [step for step in nested if step.get("type") == "ByteLevel"]
    if token is not None:
        one, other = (
            [
                {"SpecialToken": {"id": token, "type_id": kind}},
                {"Sequence": {"id": i, "type_id": kind}},
            ]
            for kind, i in enumerate("AB")
        )
        ids = {token: {"id": token, "ids": [number], "tokens": [token]}}
        pair = [*one, *other]
        kept.append(
            {"type": "TemplateProcessing", "single": one, "pair": pair, "special_tokens": ids}
        )
    if len(kept) > 1:
        return {"type": "Sequence", "processors": kept}
    return kept[0] if kept else None


def _canonical(content: dict[str, Any]) -> str:
    settings = {**content, "truncation": None, "padding": None}
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)


def _check_model(name: str, content: dict[str, Any]) -> None:
    model = content.get("model")
    if not isinstance(model, dict) or not model.get("vocab"):
        raise ConfigError(f"{name}: not a tokenizer.json: it has no model with a vocabulary")
    if model.get("dropout"):
        raise ConfigError(
            f"{name}: BPE dropout {model['dropout']} makes token ids random; set it to null"
        )


def _without_control_pieces(content: dict[str, Any]) -> dict[str, Any]:
    """The same with text never read as a special token by the model itself.

    A Unigram model finds every piece of its vocabulary in text, `</s>` as well, which SentencePiece
    leaves out. So a last step of pre-tokenization cuts such text before its last character; all
    other text keeps its ids.
    """
    model = content["model"]
    if model.get("type") != "Unigram":
        return content
    pieces = {str(entry[0]) for entry in model["vocab"] if isinstance(entry, list) and entry}
    added = [t for t in content.get("added_tokens") or [] if isinstance(t, dict)]
    special = {str(t.get("content")) for t in added if t.get("special")} & pieces
    endings: dict[str, list[str]] = {}
    for token in sorted(special):
        if len(token) > 1:
            endings.setdefault(_quote(token[-1]), []).append(_quote(token[:-1]))
    if not endings:
        return content
    pattern = "|".join(f"(?={last})(?<={'|'.join(before)})" for last, before in endings.items())
    cut = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    steps = content.get("pre_tokenizer")
    if steps is None:
        return {**content, "pre_tokenizer": cut}
    nested = steps.get("pretokenizers", []) if steps.get("type") == "Sequence" else [steps]
    if cut in (steps, *nested[-1:]):
        return content
    return {**content, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*nested, cut]}}


def _quote(text: str) -> str:
    """Text as a pattern of the regex library of `tokenizers`."""
    return "".join(c if c.isalnum() or c in "<>_/ " else f"\\x{{{ord(c):x}}}" for c in text)


@functools.lru_cache(maxsize=4)
def _parse(text: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True
    return tokenizer


def _find_marker(
    name: str, tokenizer: Tokenizer, asked: str | int, end: Literal["begin", "end"]
) -> tuple[str, int]:
    """String and id of the token at one end of documents. Raises ConfigError unless text can never
    become it."""
    token = (
        tokenizer.id_to_token(asked) if isinstance(asked, int) and 0 <= asked < 1 << 32 else asked
    )
    number = tokenizer.token_to_id(token) if isinstance(token, str) else None
    if not isinstance(token, str) or number is None:
        raise ConfigError(f"{name}: its vocabulary has no token {asked!r} to {end} documents with")
    if number in tokenizer.encode(token, add_special_tokens=False).ids:
        raise ConfigError(
            f"{name}: the text {token!r} becomes the token {number} itself, so it cannot mark the "
            f"{end if end == 'end' else 'beginning'} of a document; name a special token as "
            f"{'eos' if end == 'end' else 'bos'}"
        )
    return token, number


def _eos_beside(path: Path, content: dict[str, Any]) -> str:
    for sibling in _SIBLINGS:
        beside = path.with_name(sibling)
        if beside.is_file():
            token = _read_object(beside).get("eos_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                return token
    special = [t["content"] for t in content.get("added_tokens") or [] if t.get("special")]
    if len(special) == 1:
        return str(special[0])
    listed = ", ".join(map(repr, special[:20])) or "none"
    raise ConfigError(
        f"{path}: which token ends a document? Name it with tokenize.eos in a config, or --eos "
        f"(its special tokens: {listed})"
    )


def _find_file(path: Path) -> Path:
    """The `tokenizer.json` of a directory, or its SentencePiece model if it has nothing else."""
    if not path.is_dir() or (path / "tokenizer.json").exists():
        return path if not path.is_dir() else path / "tokenizer.json"
    models = sorted(path.glob("*.model"))
    return models[0] if models else path / "tokenizer.json"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = read_at_most(path, _LARGEST_FILE)
        if data is None:
            raise ConfigError(
                f"{path}: expected a tokenizer of at most {_LARGEST_FILE:,} bytes; got more"
            )
        if path.suffix in _SENTENCEPIECE and not data.lstrip().startswith(b"{"):
            raise ConfigError(
                f"{path}: not a tokenizer.json, but a model of SentencePiece or tiktoken; convert "
                "it once with transformers, where it is next to its tokenizer_config.json: "
                f"AutoTokenizer.from_pretrained({str(path.parent)!r}).save_pretrained('tok'), and "
                "give tok (docs/tokenizers.md)"
            )
        content = json.loads(data)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the tokenizer ({error.strerror}); give `gpt2` or the path of a "
            "tokenizer.json"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {escape_text(str(error))}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not a tokenizer.json: expected an object")
    return content


def _gpt2_json() -> dict[str, Any]:
    """OpenAI's encoder.json and vocab.bpe as a tokenizer.json (byte-level BPE, 50257 entries)."""
    directory = gpt2_vocabulary()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    merges = (directory / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    vocabulary = json.loads((directory / "encoder.json").read_text(encoding="utf-8"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": vocabulary[_GPT2_EOS], "content": _GPT2_EOS, **flags, "special": True}
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def decode_bytes(definition: TokenizerDefinition, ids: npt.NDArray[np.integer]) -> bytes:
    """The bytes that `ids` stand for, (tokens,) of any integer type; BOS and EOS contribute
    nothing.

    >>> from pipeline.tokenizers.definition import load_definition
    >>> decode_bytes(load_definition("gpt2"), np.array([15496, 995, 50256]))
    b'Hello world'
    """
    table = byte_table(definition)
    if table is not None:
        return b"".join([table[i] for i in ids.tolist()])
    texts = ids[~np.isin(ids, definition.markers)].tolist()
    return str(_tokenizer(definition).decode(texts, skip_special_tokens=False)).encode()


@functools.lru_cache(maxsize=4)
def _tokenizer(definition: TokenizerDefinition) -> Tokenizer:
    return reference_tokenizer(definition)


@functools.lru_cache(maxsize=4)
def byte_table(definition: TokenizerDefinition) -> list[bytes] | None:
    """Bytes of every id of a byte-level tokenizer; None for other tokenizers."""
    content = json.loads(definition.json)
    decoder = content.get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        return None
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}  # as GPT-2's encoder.py
    others = iter(range(256, 512))
    alphabet = {chr(b if b in printable else next(others)): b for b in range(256)}
    table = [b""] * definition.vocab_size
    for token, number in content["model"]["vocab"].items():
        if all(character in alphabet for character in token):
            table[number] = bytes(alphabet[character] for character in token)
        else:
            table[number] = token.encode()
    for added in content.get("added_tokens") or []:
        table[added["id"]] = added["content"].encode()
    for marker in definition.markers:
        table[marker] = b""
    return table
