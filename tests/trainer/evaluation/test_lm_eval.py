"""lm-eval on our models, against its own rules and plain scores. Needs the extra `eval`."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.evaluation.lm_eval_tasks import TASKS, TaskOptions, mean_accuracy, run_tasks
from trainer.evaluation.scoring import rolling_windows
from trainer.generation.loaded import LoadedModel, find_checkpoint, load_model
from trainer.generation.text import encode_text

from .conftest import MSL
from .task_documents import document, write, write_public_tasks, write_tasks
from .test_scoring import plain

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Files of all seven tasks."""
    return write_tasks(tmp_path / "tasks")


def adapter(loaded: LoadedModel, tokenizer: TokenizerDefinition) -> Any:
    needs_lm_eval()
    from trainer.evaluation.lm_eval_model import WafermillLM

    return WafermillLM(loaded, tokenizer, batch_size=3)


def needs_lm_eval() -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")


def asked(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments, task_name="a task", doc_id=0)


def test_scores_of_pairs(loaded: LoadedModel, tokenizer: TokenizerDefinition) -> None:
    """Spaces at the end of a context go to the continuation; no context is EOS."""
    pairs = [("ab c", " CD"), ("ab ", "CD"), ("", "abc")]
    model = adapter(loaded, tokenizer)
    found = model.loglikelihood([asked(*pair) for pair in pairs], disable_tqdm=True)
    wanted = [
        (encode_text(tokenizer, "ab c"), encode_text(tokenizer, " CD")),
        (encode_text(tokenizer, "ab"), encode_text(tokenizer, " CD")),
        ([tokenizer.eos_id], encode_text(tokenizer, "abc")),
    ]
    for (context, continuation), (nats, greedy) in zip(wanted, found, strict=True):
        expected = plain(loaded, context, continuation)
        assert nats == pytest.approx(expected[0], rel=1e-5)
        assert greedy == expected[1]


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 90])
def test_windows_are_those_of_lm_eval(count: int) -> None:
    utils = pytest.importorskip("lm_eval.utils", reason="the extra `eval` is not installed")
    ids = list(range(1, count + 1))
    theirs = [
        [*inputs, predicted[-1]]
        for inputs, predicted in utils.get_rolling_token_windows(
            token_list=ids, prefix_token=0, max_seq_len=32, context_len=1
        )
    ]
    ours = [[*context, *continuation] for context, continuation in rolling_windows(ids, 0, 32)]
    assert ours == theirs


def test_generate_until(loaded: LoadedModel, tokenizer: TokenizerDefinition) -> None:
    model = adapter(loaded, tokenizer)
    (free,) = model.generate_until([asked("ab", {"max_gen_toks": 8})])
    (stopped,) = model.generate_until([asked("ab", {"until": [free[2]], "max_gen_toks": 8})])
    assert stopped == free[: free.index(free[2])]


@pytest.mark.parametrize("num_fewshot", [0, 2])
def test_all_tasks(
    loaded: LoadedModel,
    tokenizer: TokenizerDefinition,
    tasks: Path,
    num_fewshot: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Twice the same; without a network, another process or a word on stdout."""
    needs_lm_eval()
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(os, "fork", refuse)
    wanted = TaskOptions(tuple(TASKS), tasks, num_fewshot, limit=4)
    found = run_tasks(loaded, tokenizer, wanted)
    assert list(found) == list(TASKS)
    for task, scores in found.items():
        assert scores.samples == 4
        assert scores.evaluated == TASKS[task].evaluated
        assert scores.examples == (TASKS[task].examples if num_fewshot else None)
        assert 0 <= scores.metrics["acc"] <= 1, task
    mean = sum(scores.metrics["acc"] for scores in found.values()) / 7
    assert mean_accuracy(found) == pytest.approx(mean)
    assert run_tasks(loaded, tokenizer, wanted) == found
    assert capfd.readouterr().out == ""


def refuse(*arguments: Any, **options: Any) -> None:
    pytest.fail("neither a connection nor a process is needed")


def test_accuracy_by_hand(loaded: LoadedModel, tokenizer: TokenizerDefinition, tasks: Path) -> None:
    """PIQA, prompt and choices put together here; its standard error is lm-eval's."""
    needs_lm_eval()
    from lm_eval.api.metrics import mean_stderr

    rows = [document("piqa", number) | {"label": number % 3 // 2} for number in range(8)]
    write(tasks / "piqa" / "validation.jsonl", rows)
    found = run_tasks(loaded, tokenizer, TaskOptions(("piqa",), tasks))["piqa"]
    right = []
    for number in range(8):
        context = encode_text(tokenizer, f"Question: ab {number}\nAnswer:")
        first, second = (
            plain(loaded, context, encode_text(tokenizer, choice))[0] for choice in (" ab", " CD")
        )
        right.append(float((first > second) == (number % 3 < 2)))
    assert found.metrics["acc"] == sum(right) / 8
    assert 0 < sum(right) < 8
    assert found.metrics["acc_stderr"] == pytest.approx(mean_stderr(right))
    one = run_tasks(loaded, tokenizer, TaskOptions(("piqa",), tasks, limit=1))["piqa"]
    assert set(one.metrics) == {"acc", "acc_norm"}


def test_documents_of_cut_prompts_are_counted(
    loaded: LoadedModel, tokenizer: TokenizerDefinition, tasks: Path
) -> None:
    """Once each, however many of their answers; MSL tokens of context and the label fit."""
    rows = [{"text": "a" * count + " c"} for count in (MSL - 1, MSL, MSL + 9)]
    write(tasks / "lambada_openai" / "test.jsonl", rows)
    rows = [document("piqa", 0) | {"goal": "a" * count} for count in (1, 40, 50)]
    write(tasks / "piqa" / "validation.jsonl", rows)
    needs_lm_eval()
    found = run_tasks(loaded, tokenizer, TaskOptions(("lambada_openai", "piqa"), tasks))
    assert found["lambada_openai"].truncated == 2
    assert found["piqa"].truncated == 2
    assert found["piqa"].described()["truncated"] == 2


def test_an_answer_that_does_not_fit_is_named(
    loaded: LoadedModel, tokenizer: TokenizerDefinition, tasks: Path
) -> None:
    rows = [document("piqa", 0), document("piqa", 1) | {"sol2": "D" * MSL}]
    write(tasks / "piqa" / "validation.jsonl", rows)
    needs_lm_eval()
    with pytest.raises(InputError, match=r"piqa, document 1 \(from 0\): an answer has 33 tokens"):
        run_tasks(loaded, tokenizer, TaskOptions(("piqa",), tasks))


def test_a_first_document_that_lm_eval_refuses(
    loaded: LoadedModel, tokenizer: TokenizerDefinition, tasks: Path
) -> None:
    needs_lm_eval()
    rows = [document("piqa", 0) | {"sol1": ""}]
    write(tasks / "piqa" / "validation.jsonl", rows)
    with pytest.raises(InputError, match=r"cannot make a prompt of piqa from the first document"):
        run_tasks(loaded, tokenizer, TaskOptions(("piqa",), tasks))


def test_examples_from_the_evaluated_file_are_told(
    loaded: LoadedModel, tokenizer: TokenizerDefinition, tasks: Path
) -> None:
    needs_lm_eval()
    (tasks / "arc_easy" / "train.jsonl").unlink()
    said: list[str] = []
    wanted = TaskOptions(("piqa", "arc_easy", "lambada_openai"), tasks, num_fewshot=1, limit=1)
    found = run_tasks(loaded, tokenizer, wanted, said.append)
    assert [scores.examples for scores in found.values()] == ["train", "test", "test"]
    assert said == [
        f"{task}: examples are other documents of test.jsonl itself"
        for task in ("arc_easy", "lambada_openai")
    ]


@pytest.mark.shared_data
@pytest.mark.parametrize("num_fewshot", [0, 5])
def test_the_public_files(
    make_model: Callable[..., Path],
    tokenizer: TokenizerDefinition,
    shared_data: Path,
    tmp_path: Path,
    num_fewshot: int,
) -> None:
    needs_lm_eval()
    write_public_tasks(shared_data / "eval_sets", tmp_path, limit=20)
    loaded = load_model(find_checkpoint(make_model(max_position_embeddings=2048)))
    wanted = TaskOptions(tuple(TASKS), tmp_path, num_fewshot, limit=3)
    found = run_tasks(loaded, tokenizer, wanted)
    assert {task: scores.samples for task, scores in found.items()} == dict.fromkeys(TASKS, 3)
    assert sum(scores.truncated for scores in found.values()) <= num_fewshot
