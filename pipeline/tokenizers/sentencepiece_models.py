"""A SentencePiece model (.model) as tokenizer.json: unigram and BPE, with or without byte fallback.

The two libraries need not agree on every text, so the result is compared with SentencePiece itself
on thousands of texts that are odd on purpose, and refused where an id differs unless that is asked
for. BPE with byte fallback (Llama, Mistral) agrees on all of them; unigram ties, and runs of
characters without a piece, may come out otherwise. Needs the extra `sentencepiece`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.tokenizers.battery import battery

_UNIGRAM, _BPE = 1, 2
_NORMAL, _CONTROL, _USER, _BYTE = 1, 3, 4, 6
_NEVER = -1e6
"""Score of pieces that no text becomes, whatever it holds."""
_SPACE = "▁"


@dataclass(frozen=True, kw_only=True)
class ConvertedTokenizer:
    """Its entries, the tokens that begin and end documents ("" for none), how many texts were
    compared with SentencePiece, and of how many of them the ids differ."""

    vocab_size: int
    bos: str
    eos: str
    texts: int
    differing: int


def convert_sentencepiece(model: Path, out: Path, inexact: bool = False) -> ConvertedTokenizer:
    """Write DIR/tokenizer.json and DIR/tokenizer_config.json; `inexact`: even where ids differ.

    Raises ConfigError without the package `sentencepiece` and for models of other kinds, InputError
    for what is no model and for one whose ids differ.
    """
    described, reference = _open(model)
    tokenizer = _build(described, model)
    texts = battery(tokenizer, [])
    different = list(_find_differences(tokenizer, reference, texts))
    if different and not inexact:
        raise InputError(
            f"{model}: the ids of {len(different):,} of {len(texts):,} texts, which are odd on "
            f"purpose, would differ: {different[0]}; --inexact converts anyway"
        )
    spec = described.trainer_spec
    bos, eos = (_piece(described, number) for number in (spec.bos_id, spec.eos_id))
    if not eos:
        raise InputError(
            f"{model}: no piece ends a text (eos_id {spec.eos_id}); documents need one"
        )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}
    settings |= {"bos_token": bos} if bos else {}
    content = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=1)
    storage.publish(out / "tokenizer_config.json", storage.canonical_json(settings))
    storage.publish(out / "tokenizer.json", f"{content}\n".encode())
    return ConvertedTokenizer(
        vocab_size=tokenizer.get_vocab_size(),
        bos=bos,
        eos=eos,
        texts=len(texts),
        differing=len(different),
    )


def _open(model: Path) -> tuple[Any, Any]:
    try:
        import sentencepiece.sentencepiece_model_pb2 as messages
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise ConfigError(
            f"{error.name or 'sentencepiece'} is not installed; pip install "
            "'wafermill[sentencepiece]'"
        ) from error
    try:
        data = model.read_bytes()
    except OSError as error:
        raise InputError(f"{model}: cannot read: {error.strerror}") from error
    described: Any = messages.ModelProto()  # type: ignore[attr-defined]
    try:
        described.ParseFromString(data)
        reference = SentencePieceProcessor(model_proto=data)
    except Exception as error:  # protobuf and SentencePiece have errors of their own
        reason = escape_text(str(error), 100)
        raise InputError(f"{model}: not a SentencePiece model: {reason}") from error
    if not described.pieces:
        raise InputError(f"{model}: not a SentencePiece model: it has no pieces")
    return described, reference


def _build(described: Any, model: Path) -> Tokenizer:
    spec, rules = described.trainer_spec, described.normalizer_spec
    if spec.model_type not in (_UNIGRAM, _BPE):
        raise ConfigError(f"{model}: neither unigram nor BPE; words and characters are no subwords")
    if spec.treat_whitespace_as_suffix or not rules.escape_whitespaces:
        raise ConfigError(
            f"{model}: spaces end words or are left as they are, which is not converted"
        )
    scores = [
        (piece.piece, piece.score if piece.type in (_NORMAL, _USER, _BYTE) else _NEVER)
        for piece in described.pieces
    ]
    if spec.model_type == _UNIGRAM:
        made = Tokenizer(
            models.Unigram(scores, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback)
        )
    else:
        vocabulary = {text: number for number, (text, _) in enumerate(scores)}
        merges = _merges(vocabulary, described.pieces)
        made = Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=merges,
                unk_token=spec.unk_piece,
                fuse_unk=True,
                byte_fallback=spec.byte_fallback,
            )
        )
    made.normalizer = normalizers.Sequence(list(_normalizers(rules)))
    made.decoder = decoders.Sequence(list(_decoders(rules)))
    for number, piece in enumerate(described.pieces):
        if piece.type in (_CONTROL, _USER):
            special = piece.type == _CONTROL
            made.add_tokens([AddedToken(piece.piece, normalized=False, special=special)])
            assert made.token_to_id(piece.piece) == number
    return made


def _merges(vocabulary: dict[str, int], pieces: Sequence[Any]) -> list[tuple[str, str]]:
    """Pairs of pieces that make a piece, those of the highest score first."""
    found = []
    for number, piece in enumerate(pieces):
        if piece.type != _NORMAL:
            continue
        for cut in range(1, len(piece.piece)):
            left, right = piece.piece[:cut], piece.piece[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-piece.score, number, vocabulary[left], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _normalizers(rules: Any) -> Iterator[normalizers.Normalizer]:
    if rules.precompiled_charsmap:
        yield normalizers.Precompiled(rules.precompiled_charsmap)
    if rules.remove_extra_whitespaces:
        yield normalizers.Replace(Regex("^ +| +$"), "")
        yield normalizers.Replace(Regex(" {2,}"), " ")
    if rules.add_dummy_prefix:
        yield normalizers.Prepend(_SPACE)
    yield normalizers.Replace(" ", _SPACE)


def _decoders(rules: Any) -> Iterator[decoders.Decoder]:
    yield decoders.Replace(_SPACE, " ")
    yield decoders.ByteFallback()
    yield decoders.Fuse()
    if rules.add_dummy_prefix:
        yield decoders.Strip(content=" ", left=1)


def _piece(described: Any, number: int) -> str:
    return str(described.pieces[number].piece) if 0 <= number < len(described.pieces) else ""


def _find_differences(tokenizer: Tokenizer, reference: Any, texts: Sequence[str]) -> Iterator[str]:
    """The texts of which the ids differ, in words."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.encode_special_tokens = True
    for text in texts:
        found, expected = plain.encode(text, add_special_tokens=False).ids, reference.encode(text)
        if found != expected:
            pairs = enumerate(zip(found, expected, strict=False))
            shortest = min(len(found), len(expected))
            place = next((number for number, (a, b) in pairs if a != b), shortest)
            would, is_now = found[place : place + 1], expected[place : place + 1]
            yield f"of {escape_text(text, 60)!r} token {place} would be {would}, and is {is_now}"
