"""Generation inside one call of a compiled module, next to a loop that is written out.

Legend: B rows, S positions, V vocabulary.
"""

from typing import Any

import pytest
import torch
from torch import nn

import wafer_backend as cstorch

START, V, S = 30, 31, 12


class Model(nn.Module):
    """Predicts from all tokens so far; in evaluation generates."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(V, 16)
        self.head = nn.Linear(16, V)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        counted = torch.arange(1, ids.shape[1] + 1, device=ids.device)[:, None]
        return torch.tanh(self.tokens(ids.long()).cumsum(1) / counted.sqrt())

    def forward(self, data: dict[str, torch.Tensor], old: bool = False) -> torch.Tensor:
        ids = data["input_ids"]
        if old:
            predictions = self.head(self.hidden(ids)).argmax(-1).int()
            cstorch.run_implicit_autoregressive_loop(
                input_tensor=ids,
                output_tensor=predictions,
                loop_dim=1,
                start_token=START,
                stop_sequences=[[4], [7, 9]],
                max_tokens=6,
            )
            return predictions
        index = cstorch.start_implicit_loop(ids, loop_dim=1)
        assert index.shape == (len(ids), 1)
        hidden = cstorch.get_loop_iteration_slice(self.hidden(ids), index)
        return cstorch.update_implicit_loop(
            input_tensor=ids,
            index_tensor=index,
            update_tensor=self.head(hidden).argmax(-1).int(),
            stop_sequences_tensor=data["stop_sequences"],
            start_token=[START],
            max_tokens=data["most"][0].item() if "most" in data else None,
        )


@torch.no_grad()
def written_out(
    model: Model, row: list[int], stops: list[list[int]], most: int | None
) -> list[int]:
    """One row, one token at a time, on the context alone."""
    if START not in row:
        return row
    begin = max(row.index(START), 1)
    made = row[:begin]
    while len(made) < len(row) and (most is None or len(made) - begin < most):
        made.append(int(model.head(model.hidden(torch.tensor([made]))[:, -1]).argmax()))
        if any(made[begin:][-len(stop) :] == stop for stop in stops):
            break
    return made + row[len(made) :]


def make_rows(lengths: list[int]) -> torch.Tensor:
    drawn = torch.randint(0, START, (len(lengths), S), generator=torch.Generator().manual_seed(1))
    for row, length in zip(drawn, lengths, strict=True):
        row[length:] = START
    return drawn.int()


def make_stops(model: Model, rows: torch.Tensor) -> tuple[torch.Tensor, list[list[list[int]]]]:
    """For every third row two tokens that it will generate, for every third one, with others; as
    data processors write them, filled up with start tokens."""
    filled = torch.full((len(rows), 2, 3), START, dtype=torch.int32)
    each: list[list[list[int]]] = []
    for number, row in enumerate(rows.tolist()):
        begin = row.index(START) if START in row else S
        made = written_out(model, row, [], None)[begin:]
        stops = [[made[1:3], [4]], [made[:1]], [[START - 1, 0, 0]]][number % 3] if made else [[4]]
        each.append([stop for stop in stops if stop])
        for place, stop in enumerate(each[-1]):
            filled[number, place, : len(stop)] = torch.tensor(stop)
    return filled, each


def generate(model: Model, num_csx: int, data: dict[str, torch.Tensor], **settings: Any) -> Any:
    cstorch.reset()
    config = cstorch.distributed.ClusterConfig(num_csx=num_csx)
    cstorch.backend("CSX", cluster_config=config)
    compiled = cstorch.compile(model)
    compiled.eval()
    with torch.no_grad():
        return cstorch.trace(lambda: compiled(data, **settings))()


@pytest.mark.parametrize("most", [None, 0, 1, 4])
def test_rows_are_those_of_a_loop_that_is_written_out(most: int | None) -> None:
    torch.manual_seed(3)
    model = Model()
    rows = make_rows([3, 6, 1, 8, S, 2, 0, 11, 5])
    filled, stops = make_stops(model, rows)
    data = {"input_ids": rows, "stop_sequences": filled}
    if most is not None:
        data["most"] = torch.full((len(rows),), most)
    expected = [
        written_out(model, row, stop, most) for row, stop in zip(rows.tolist(), stops, strict=True)
    ]
    before = rows.clone()
    for num_csx in (1, 2, 4):
        made = generate(model, num_csx, data)
        assert made.dtype == torch.int32
        assert made.tolist() == expected
    assert torch.equal(rows, before)
    if most is None:
        assert sum(row[-1] == START for row in expected) >= 3, "rows end early, and others do not"


def test_the_older_spelling_returns_what_the_model_predicts() -> None:
    """Predictions are shifted by one: position i has the token of i + 1."""
    torch.manual_seed(3)
    model = Model()
    lengths = [3, 6, 1, 8, 5, 2, 4, 7]
    rows = make_rows(lengths)
    made = generate(model, 2, {"input_ids": rows}, old=True)
    for row, length, predicted in zip(rows.tolist(), lengths, made.tolist(), strict=True):
        expected = written_out(model, row, [[4], [7, 9]], 6)
        generated = [token for token in expected[length:] if token != START]
        assert predicted[length - 1 :][: len(generated)] == generated


def test_a_slice_is_taken_along_the_dimension_of_the_loop() -> None:
    values = torch.arange(2 * 3 * 4).reshape(2, 3, 4)
    index = torch.tensor([[2], [0]], dtype=torch.int32)
    taken = cstorch.get_loop_iteration_slice(values, index)
    assert taken.tolist() == [[values[0, 2].tolist()], [values[1, 0].tolist()]]


class Wrong(nn.Module):
    def __init__(self, change: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.change = change

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        given: dict[str, Any] = {
            "input_tensor": ids,
            "index_tensor": cstorch.start_implicit_loop(ids, 1),
            "update_tensor": ids[:, :1],
            "stop_sequences_tensor": torch.zeros(1, 1, dtype=torch.int32),
            "start_token": 0,
        }
        changed = {name: value(ids) for name, value in self.change.items()}
        return cstorch.update_implicit_loop(**given | changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_tensor": lambda ids: ids + 0}, "must be one of the tensors"),
        ({"update_tensor": lambda ids: ids[:, :2]}, "expected that of a slice"),
        ({"update_tensor": lambda ids: ids[:, :1].long()}, "expected int32"),
        ({"start_token": lambda ids: []}, "start_token is"),
        ({"start_token": lambda ids: -1}, "start_token is"),
        ({"max_tokens": lambda ids: -1}, "max_tokens is -1"),
        ({"stop_sequences_tensor": lambda ids: ids[0]}, "stop_sequences_tensor has the shape"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], message: str) -> None:
    cstorch.backend("CSX")
    cstorch.backends.csx.performance.micro_batch_size = None
    compiled = cstorch.compile(Wrong(change))
    with pytest.raises(cstorch.BackendError, match=message), torch.no_grad():
        cstorch.trace(lambda: compiled(make_rows([3, 4])))()


def test_outside_of_a_compiled_module_and_with_gradients() -> None:
    with pytest.raises(cstorch.StepError, match="compiled modules only"):
        cstorch.start_implicit_loop(make_rows([3]), 1)
    cstorch.backend("CSX")
    cstorch.backends.csx.performance.micro_batch_size = None
    compiled = cstorch.compile(Wrong({}))
    with pytest.raises(cstorch.StepError, match="no gradients"):
        cstorch.trace(lambda: compiled(make_rows([3, 4])))()
