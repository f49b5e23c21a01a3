"""Packed rows: documents see only themselves, to the bit."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.model.conftest import OPTIONS
from trainer.model import GPT
from trainer.model.attention import segment_mask

ROWS = [[6, 4, 3], [16], [1, 1, 9, 5]]  # the first has three pads


def tokens_of(rows):
    """(row, slice) of every segment."""
    for row, segments in enumerate(rows):
        start = 0
        for n in segments:
            yield row, slice(start, start + n)
            start += n


@given(st.lists(st.lists(st.integers(1, 6), max_size=6), min_size=1, max_size=4))
def test_the_mask_joins_earlier_tokens_of_one_segment(rows):
    length = max(1, *(sum(row) for row in rows)) + 2
    span_BS = torch.zeros(len(rows), length, dtype=torch.long)
    expected = torch.zeros(len(rows), length, length, dtype=torch.bool)
    expected |= torch.eye(length, dtype=torch.bool)  # pads, and every token itself
    for row, inside in tokens_of(rows):
        n = inside.stop - inside.start
        span_BS[row, inside] = torch.arange(n - 1, -1, -1)
        expected[row, inside, inside] = torch.ones(n, n, dtype=torch.bool).tril()
    assert torch.equal(segment_mask(span_BS), expected)


def losses(model, batch):
    """(logits, loss of every label)."""
    with torch.no_grad():
        logits_BSV = model.logits(
            batch["input_ids"],
            position_ids_BS=batch["position_ids"],
            attention_span_BS=batch["attention_span"],
        )
    return logits_BSV, F.cross_entropy(
        logits_BSV.flatten(0, 1), batch["labels"].flatten(), reduction="none"
    ).view_as(batch["labels"])


def equal(ours: torch.Tensor, theirs: torch.Tensor, family: str) -> bool:
    """To the bit; in a mixture of experts, whose products have as many rows as tokens chose the
    expert, to rounding."""
    if "moe" in OPTIONS.get(family, {}):
        return torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return torch.equal(ours, theirs)


@pytest.mark.parametrize("length", [16, 512], ids=["short", "several-kernel-blocks"])
def test_another_document_changes_no_bit(family, make_config, length):
    model = GPT(make_config(family, max_position_embeddings=length), 1)
    stretch = length // 16
    rows = [[n * stretch for n in segments] for segments in ROWS]
    generator = torch.Generator().manual_seed(5)
    names = ("input_ids", "labels")
    batch = {name: torch.randint(0, 61, (3, length), generator=generator) for name in names}
    batch["attention_span"] = torch.zeros(3, length, dtype=torch.long)
    batch["position_ids"] = torch.zeros(3, length, dtype=torch.long)
    for row, inside in tokens_of(rows):
        n = inside.stop - inside.start
        batch["attention_span"][row, inside] = torch.arange(n - 1, -1, -1)
        batch["position_ids"][row, inside] = torch.arange(n)
    before = losses(model, batch)
    for row, inside in list(tokens_of(rows))[1::2]:
        other = {**batch, "input_ids": batch["input_ids"].clone()}
        other["input_ids"][row, inside] = (other["input_ids"][row, inside] + 7) % 61
        kept = torch.ones(3, length, dtype=torch.bool)
        kept[row, inside] = False
        after = losses(model, other)
        for ours, theirs in zip(before, after, strict=True):
            assert equal(ours[kept], theirs[kept], family)
        assert (before[0][row, inside] != after[0][row, inside]).any(-1).all()


def test_a_document_in_a_row_is_the_document_alone(family, make_config, make_packed):
    model = GPT(make_config(family), 1).eval()
    batch = make_packed(ROWS)
    logits_BSV, losses_BS = losses(model, batch)
    total = torch.zeros((), dtype=torch.float64)
    for row, inside in tokens_of(ROWS):
        ids, labels = batch["input_ids"][row : row + 1, inside], batch["labels"][row, inside]
        with torch.no_grad():
            alone = model.logits(ids)[0]
        torch.testing.assert_close(logits_BSV[row, inside], alone, rtol=0, atol=1e-5)
        expected = F.cross_entropy(alone, labels, reduction="none")
        torch.testing.assert_close(losses_BS[row, inside], expected, rtol=0, atol=1e-5)
        total += expected.double().sum()
    loss_sum, counted = model(batch)
    assert int(counted) == 13 + 16 + 16
    assert float(loss_sum.detach()) == pytest.approx(float(total), rel=1e-6)


def test_gradients_of_a_packed_row_are_finite_and_ignore_pads(family, make_config, make_packed):
    model = GPT(make_config(family), 1)

    def gradients(batch):
        model.zero_grad()
        model(batch)[0].backward()
        return [p.grad.clone() for p in model.parameters()]

    batch = make_packed([[6, 4, 3], [2]])
    ids_BS = torch.where(batch["attention_mask"] == 0, 9, batch["input_ids"])
    for ours, theirs in zip(
        gradients(batch), gradients({**batch, "input_ids": ids_BS}), strict=True
    ):
        assert ours.isfinite().all()
        assert equal(ours, theirs, family)


def test_one_segment_is_an_ordinary_row(family, make_config, make_packed):
    model = GPT(make_config(family), 1)
    batch = make_packed([[16], [16]])
    with torch.no_grad():
        plain = model.logits(batch["input_ids"])
    torch.testing.assert_close(losses(model, batch)[0], plain, rtol=0, atol=1e-6)


def test_the_mask_is_made_once_for_all_layers(make_config, make_packed, monkeypatch):
    made = []

    def counted(span_BS):
        made.append(span_BS.shape)
        return segment_mask(span_BS)

    monkeypatch.setattr("trainer.model.attention.segment_mask", counted)
    GPT(make_config(num_hidden_layers=5), 1)(make_packed(ROWS))
    assert made == [(3, 16)]


@pytest.mark.parametrize("name", ["gpt2", "btlm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_keep_one_mask_for_backward_and_no_logits(make_config, make_packed, name, dtype):
    half = {} if dtype == torch.float32 else {"mixed_precision": True, "fp16_type": "bfloat16"}
    model = GPT(make_config(name, num_hidden_layers=5, **half), 1)
    if half:
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype) if parameter.ndim == 2 else parameter.data
    kept = []

    def keep(tensor):
        if tensor.shape[-2:] == (16, 16) and tensor.ndim == 4:
            kept.append((tuple(tensor.shape), tensor.dtype, tensor.untyped_storage().data_ptr()))
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=bool(half), cache_enabled=False),
    ):
        model(make_packed(ROWS))
    assert len(kept) == 5
    heads = 4 if name == "btlm" else 1
    assert {(shape, kind) for shape, kind, _ in kept} == {((3, heads, 16, 16), dtype)}
    assert len({pointer for _, _, pointer in kept}) == 1
