"""Messages as bytes: what was sent arrives, and what was damaged is named."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wafer_backend.cluster.tree import TreeNode
from wafer_backend.errors import TransportError
from wafer_backend.transports import messages as wire
from wafer_backend.transports.messages import Address, Kind, Message

NAMES = ["", "a.weight", "b.bias", "c"]
KNOWN = {wire.name_hash(name): name for name in NAMES}
SHAPES = st.sampled_from([(), (0,), (3,), (2, 0, 4), (5, 7), (200, 100), (3, 2, 1, 2, 1, 2, 1, 2)])
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape, generator = draw(SHAPES), torch.Generator().manual_seed(draw(st.integers(0, 9)))
    made = (torch.randn(shape, generator=generator) * 3).to(draw(DTYPES))
    return made.transpose(0, -1) if draw(st.booleans()) and made.ndim > 1 else made


@st.composite
def messages(draw: st.DrawFn) -> Message:
    labels = st.sampled_from([*NAMES[1:], "3.0", "12.7"])
    return Message(
        kind=draw(st.sampled_from(Kind)),
        sender=Address("wafer", draw(st.integers(0, 900))),
        receiver=Address("MemoryX", 2),
        round=draw(st.integers(-1, 2**40)),
        node=draw(st.none() | st.builds(TreeNode, st.integers(0, 40), st.integers(0, 2**40))),
        name=draw(st.sampled_from(NAMES)),
        tensors=draw(st.dictionaries(labels, tensors(), max_size=5)),
        numbers=draw(st.dictionaries(st.sampled_from(wire.NUMBERS), st.floats(allow_nan=False))),
    )


def received(data: bytes) -> Message:
    stream = memoryview(data)

    def fill(part: torch.Tensor) -> None:
        nonlocal stream
        part.copy_(torch.frombuffer(bytearray(stream[: len(part)]), dtype=torch.uint8))
        stream = stream[len(part) :]

    found = wire.decode_message(fill, KNOWN)
    assert not stream
    return found


def sent(message: Message) -> bytes:
    return b"".join(part.numpy().tobytes() for part in wire.encode_message(message))


@given(messages())
def test_what_was_sent_arrives(message: Message):
    found = received(sent(message))
    assert str(found) == str(message)
    assert (found.round, found.numbers) == (message.round, message.numbers)
    assert list(found.tensors) == list(message.tensors)
    for name, tensor in message.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


@pytest.mark.parametrize("tensors", [1, 3])
def test_damage_is_named(tensors: int):
    """One bit anywhere behind the header: the table, or a tensor."""
    named = {name: torch.zeros(100, dtype=torch.uint8) for name in NAMES[-tensors:]}
    message = Message(
        kind=Kind.WEIGHT,
        sender=Address("MemoryX"),
        receiver=Address("wafer"),
        round=0,
        tensors=named,
    )
    data = sent(message)
    header = len(wire.encode_message(message)[0])
    for place in range(header, len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(TransportError, match=r"WEIGHT from .* damaged on the way"):
            received(bytes(damaged))


def test_a_weight_alone_is_sent_from_its_own_memory():
    weight = torch.zeros(9)
    message = Message(
        kind=Kind.WEIGHT,
        sender=Address("MemoryX"),
        receiver=Address("wafer"),
        round=0,
        tensors={"c": weight},
    )
    assert wire.encode_message(message)[-1].data_ptr() == weight.data_ptr()


def test_an_unknown_name_is_an_error():
    message = Message(
        kind=Kind.FETCH, sender=Address("wafer"), receiver=Address("MemoryX"), round=0, name="x"
    )
    with pytest.raises(TransportError, match="about a name that this rank does not have"):
        received(sent(message))
