"""lm-eval on our models, against its own rules and plain scores. Needs the extra `eval`."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.evaluation.lm_eval_tasks import TASKS, Wanted, mean_accuracy, run_tasks, task_files
from trainer.evaluation.loaded import LoadedModel, find_checkpoint, load_model
from trainer.evaluation.scoring import rolling_windows
from trainer.generation.text import encoded

from .test_scoring import plain

pytestmark = pytest.mark.filterwarnings("ignore")


def document(task: str, number: int) -> dict[str, Any]:
    """A document of a task, in the fields of its data set; the first choice is right."""
    choices = {"text": [f"ab{number}", "CD", "a", "c"], "label": ["A", "B", "C", "D"]}
    return {
        "hellaswag": {"ind": number, "activity_label": "ab", "ctx_a": f"a{number}", "ctx_b": "c",
                      "endings": ["ab", "cd", "CC", "D"], "label": "0"},
        "piqa": {"goal": f"ab {number}", "sol1": "ab", "sol2": "CD", "label": 0},
        "winogrande": {"sentence": f"a{number} and _ ab", "option1": "a", "option2": "C",
                       "answer": "1"},
        "lambada_openai": {"text": f"ab cd {number} ab"},
        "arc_easy": {"id": f"{number}", "question": "a?", "choices": choices, "answerKey": "A"},
        "arc_challenge": {"id": f"{number}", "question": "b?", "choices": choices,
                          "answerKey": "A"},
        "openbookqa": {"id": f"{number}", "question_stem": "c", "choices": choices,
                       "answerKey": "A"},
    }[task]  # fmt: skip


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Files of all seven tasks."""
    for task in TASKS:
        directory = tmp_path / "tasks" / task
        directory.mkdir(parents=True)
        evaluated = "test" if task.startswith(("arc", "openbook", "lambada")) else "validation"
        for split in {evaluated, "train"} - ({"train"} if task.startswith("lambada") else set()):
            first = 100 if split == "train" else 0
            rows = [json.dumps(document(task, first + n)) for n in range(8)]
            (directory / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path / "tasks"


def adapter(loaded: LoadedModel, tokenizer: TokenizerDefinition) -> Any:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    from trainer.evaluation.lm_eval_model import WafermillLM

    return WafermillLM(loaded, tokenizer, batch_size=3)


def asked(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


def test_scores_of_pairs(loaded: LoadedModel, tokenizer: TokenizerDefinition) -> None:
    """Spaces at the end of a context go to the continuation; no context is EOS."""
    pairs = [("ab c", " CD"), ("ab ", "CD"), ("", "abc")]
    model = adapter(loaded, tokenizer)
    found = model.loglikelihood([asked(*pair) for pair in pairs], disable_tqdm=True)
    wanted = [
        (encoded(tokenizer, "ab c"), encoded(tokenizer, " CD")),
        (encoded(tokenizer, "ab"), encoded(tokenizer, " CD")),
        ([tokenizer.eos_id], encoded(tokenizer, "abc")),
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
    loaded: LoadedModel, tokenizer: TokenizerDefinition, tasks: Path, num_fewshot: int
) -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    wanted = Wanted(tuple(TASKS), tasks, num_fewshot, limit=4)
    found = run_tasks(loaded, tokenizer, wanted)
    assert list(found) == list(TASKS)
    for task, metrics in found.items():
        assert metrics["samples"] == 4
        assert 0 <= metrics["acc"] <= 1, task
    mean = sum(metrics["acc"] for metrics in found.values()) / 7
    assert mean_accuracy(found) == pytest.approx(mean)
    assert run_tasks(loaded, tokenizer, wanted) == found


def test_accuracy_by_hand(loaded: LoadedModel, tokenizer: TokenizerDefinition, tasks: Path) -> None:
    """PIQA, prompt and choices put together here."""
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    found = run_tasks(loaded, tokenizer, Wanted(("piqa",), tasks))
    right = 0
    for number in range(8):
        context = encoded(tokenizer, f"Question: ab {number}\nAnswer:")
        first, second = (
            plain(loaded, context, encoded(tokenizer, choice))[0] for choice in (" ab", " CD")
        )
        right += first > second
    assert found["piqa"]["acc"] == right / 8


def test_files_that_lm_eval_cannot_read(
    loaded: LoadedModel, tokenizer: TokenizerDefinition, tasks: Path
) -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    (tasks / "piqa" / "validation.jsonl").write_text("{\n")
    with pytest.raises(InputError, match="lm-eval cannot read the tasks"):
        run_tasks(loaded, tokenizer, Wanted(("piqa",), tasks))


def test_which_files_a_task_has(tasks: Path) -> None:
    assert set(task_files(tasks, "piqa")) == {"train", "validation"}
    assert set(task_files(tasks, "lambada_openai")) == {"test"}


def shared_documents(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Some documents of the reference copies of three tasks, in the fields of their data sets."""

    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (directory / name).read_text().splitlines()[:20]]

    return {
        "piqa": [
            {"goal": r["question"], "sol1": r["choices"][0], "sol2": r["choices"][1],
             "label": r["label"]}
            for r in rows("piqa_val_400.jsonl")
        ],
        "winogrande": [
            {"sentence": r["question"], "option1": r["choices"][0], "option2": r["choices"][1],
             "answer": str(r["label"] + 1)}
            for r in rows("winogrande_val_400.jsonl")
        ],
        "lambada_openai": [{"text": r["text"]} for r in rows("lambada_openai_test_500.jsonl")],
    }  # fmt: skip


@pytest.mark.shared_data
def test_documents_of_the_real_tasks(
    make_model: Callable[..., Path],
    tokenizer: TokenizerDefinition,
    shared_data: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    documents = shared_documents(shared_data / "eval_sets")
    for task, rows in documents.items():
        (tmp_path / task).mkdir()
        split = "test" if task == "lambada_openai" else "validation"
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / task / f"{split}.jsonl").write_text(lines)
    loaded = load_model(find_checkpoint(make_model(max_position_embeddings=1024)))
    found = run_tasks(loaded, tokenizer, Wanted(tuple(documents), tmp_path))
    assert {task: metrics["samples"] for task, metrics in found.items()} == {
        "piqa": 20, "winogrande": 20, "lambada_openai": 20,
    }  # fmt: skip
    assert found["piqa"]["acc"] > 0
