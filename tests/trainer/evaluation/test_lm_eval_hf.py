"""Our scores are those of lm-eval's own model `hf` on an export of the weights.

Needs the extra `eval`, and `accelerate` besides, which lm-eval's `hf` asks for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.convert.conversion import CheckpointConvertOptions, convert_checkpoint
from trainer.evaluation.lm_eval_tasks import TASKS, load_tasks, read_task
from trainer.generation.loaded import find_checkpoint, load_model, tokenizer_for

from .task_documents import write_public_tasks

pytestmark = [pytest.mark.shared_data, pytest.mark.filterwarnings("ignore")]


def scores(model: Any, data_dir: Path, scratch: Path, num_fewshot: int) -> dict[str, Any]:
    """Task -> its metrics and the (arguments, answers) of each document."""
    from lm_eval.evaluator import evaluate

    local = [read_task(data_dir, task, num_fewshot) for task in TASKS]
    tasks = load_tasks(local, num_fewshot, scratch)
    found = evaluate(
        model, {"tasks": tasks}, limit=1 if num_fewshot else 2, bootstrap_iters=0, log_samples=True
    )
    return {
        task: (
            {k: v for k, v in found["results"][task].items() if isinstance(v, float)},
            [(one["arguments"], one["resps"]) for one in found["samples"][task]],
        )
        for task in TASKS
    }


@pytest.mark.parametrize(("num_fewshot", "msl"), [(0, 1024), (5, 1024), (5, 96)])
def test_scores_agree(
    num_fewshot: int,
    msl: int,
    make_model: Callable[..., Path],
    shared_data: Path,
    tmp_path: Path,
) -> None:
    """At MSL 96 most contexts are cut."""
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    pytest.importorskip("accelerate", reason="lm-eval's model hf needs accelerate")
    from lm_eval.models.huggingface import HFLM

    from trainer.evaluation.lm_eval_model import WafermillLM

    model_dir = make_model(vocab_size=50257, max_position_embeddings=msl)
    convert_checkpoint(
        CheckpointConvertOptions(
            checkpoint=model_dir, source="wafermill", target="hf", out=tmp_path / "hf"
        ),
        lambda line: None,
    )
    data_dir = write_public_tasks(shared_data / "eval_sets", tmp_path / "tasks", limit=10)
    found = find_checkpoint(model_dir)
    our_model = WafermillLM(load_model(found), tokenizer_for(None, found))
    their_model = HFLM(str(tmp_path / "hf"), device="cpu", dtype="float32", batch_size=2)
    ours = scores(our_model, data_dir, tmp_path / "ours", num_fewshot)
    theirs = scores(their_model, data_dir, tmp_path / "theirs", num_fewshot)
    for task in TASKS:
        assert ours[task][0] == pytest.approx(theirs[task][0], rel=1e-4)
        for (asked, answers), (same, expected) in zip(ours[task][1], theirs[task][1], strict=True):
            assert asked == same
            for ((nats, greedy),), ((wanted, likeliest),) in zip(answers, expected, strict=True):
                assert nats == pytest.approx(wanted, rel=1e-4)
                assert greedy == likeliest
    assert (sum(map(our_model.n_truncated, TASKS)) > 0) == (msl == 96)
