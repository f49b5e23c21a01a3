"""The public functions of `trainer` do what the commands do; errors are the project's own."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import trainer as public
from pipeline.core.errors import ConfigError, InputError
from trainer import api
from trainer.cli import app
from trainer.config import load_params

from .evaluation.conftest import MSL, write_run

RUNNER = CliRunner()
VOCABULARY = 259


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a tokenizer of its own, and splits train, validation and test."""
    return write_run(tmp_path_factory.mktemp("prepared"), "sample")


@pytest.fixture(scope="module")
def model_dir(prepared: Path) -> Path:
    """A model that was trained on it for four steps."""
    params = {
        "train_input": {"batch_size": 4, "micro_batch_size": 2},
        "model": {
            "vocab_size": VOCABULARY, "max_position_embeddings": MSL, "hidden_size": 16,
            "num_hidden_layers": 1, "num_heads": 2, "filter_size": 32,
        },
        "optimizer": {"learning_rate": 0.01},
    }  # fmt: skip
    out = prepared.parent / "model"
    public.train(params=params, data=prepared, model_dir=out, num_steps=4)
    return out


def printed(*arguments: object) -> Any:
    """What a command prints as JSON."""
    done = RUNNER.invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_training_is_that_of_the_command(trainer: Any, capsys: Any) -> None:
    """Of a file, a mapping and params, on any number of systems; and quiet."""
    assert trainer.train("command", mode=None) == 0
    value = yaml.safe_load(trainer.params.read_text())
    forms = (trainer.params, str(trainer.params), value, load_params(trainer.params))
    for number, params in enumerate(forms):
        out = trainer.root / f"out{number}"
        made = public.train(
            params=params, data=trainer.data, model_dir=out, num_csx=1 + number % 3, num_steps=6
        )
        assert trainer.bits(out.name) == trainer.bits("command")
    assert capsys.readouterr() == ("", "")
    assert made.model_dir == out and made.last_step == 6
    assert made.checkpoint == out / "checkpoints" / "step_0000006"
    assert [line["step"] for line in made.metrics()] == [1, 2, 3, 4, 5, 6]
    assert made.loss == made.metrics()[-1]["loss"]
    assert made.eval_loss == made.evaluations()[-1]["loss"]


def test_the_same_call_resumes(trainer: Any, capsys: Any) -> None:
    options = {"params": trainer.params, "data": trainer.data, "model_dir": trainer.root / "out"}
    first = public.train(**options, mode="train", num_steps=2)
    assert first.eval_loss is None
    assert public.train(**options, mode="train", num_steps=4, progress=True).last_step == 4
    assert "Beginning run: steps 3 to 4" in capsys.readouterr().out
    assert public.train(**options, mode="train", num_steps=4).last_step == 4


def test_training_in_another_thread(trainer: Any) -> None:
    """Signals are for the main thread; a run elsewhere does without."""
    found: list[Any] = []

    def work() -> None:
        found.append(
            public.train(
                params=trainer.params, data=trainer.data, model_dir=trainer.root / "out",
                mode="train", num_steps=2,
            )
        )  # fmt: skip

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0].last_step == 2


@pytest.mark.parametrize(("code", "raised"), [(130, KeyboardInterrupt), (143, SystemExit)])
def test_a_signal_is_raised_after_the_checkpoint(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, code: int, raised: type[BaseException]
) -> None:
    monkeypatch.setattr(api, "run_training", lambda request, say: code)
    with pytest.raises(raised):
        public.train(params=trainer.params, data=trainer.data, num_steps=2)


def test_evaluation_is_that_of_the_command(prepared: Path, model_dir: Path, capsys: Any) -> None:
    found = public.evaluate(model_dir, prepared, split="test", batch_size=4, eval_steps=2)
    expected = printed(
        "evaluate", model_dir, "--data", prepared, "--split", "test", "--batch_size", 4,
        "--eval_steps", 2,
    )  # fmt: skip
    assert found.evaluation.described() == {
        name: expected[name] for name in found.evaluation.described()
    }
    assert (found.step, found.checkpoint_hash) == (4, expected["checkpoint_hash"])
    assert set(found.evaluation.per_source) == {"lower", "upper"}
    assert capsys.readouterr() == ("", "")


def test_text_is_that_of_the_command(model_dir: Path) -> None:
    loaded = public.load(model_dir)
    assert loaded.tokenizer is not None and loaded.tokenizer.vocab_size == VOCABULARY
    assert loaded.config.vocab_size == VOCABULARY and not loaded.model.training
    options = {"max_new_tokens": 5, "temperature": 0.7, "seed": 3, "top_k": 50}
    prompts = ["abc", "CD"]
    made = public.generate(loaded, prompts, **options)
    for prompt, text in zip(prompts, made, strict=True):
        expected = printed(
            "generate", "--model_dir", model_dir, "--prompt", prompt, "--max-new-tokens", 5,
            "--temperature", 0.7, "--seed", 3, "--top-k", 50,
        )  # fmt: skip
        assert (text.text, list(text.ids)) == (expected["text"], expected["ids"])
        assert text.ended == expected["ended"]
    assert public.generate(model_dir / "checkpoints" / "step_0000004", "abc", **options) == made[:1]
    letters = [letter for letter in made[0].text if letter.isascii()]
    if letters:
        stopped = public.generate(loaded, "abc", stop=letters[0], **options)[0]
        assert stopped.ended == "stop" and letters[0] not in stopped.text


def test_what_is_refused(trainer: Any, prepared: Path, model_dir: Path) -> None:
    out = trainer.root / "out"
    value = yaml.safe_load(trainer.params.read_text())
    with pytest.raises(ConfigError, match="nothing to train"):
        public.train(model_dir=out)
    with pytest.raises(ConfigError, match="no length"):
        public.train(params=value, data=trainer.data, model_dir=out)
    with pytest.raises(ConfigError, match=r"^params: model\.hidden: unknown key"):
        public.train(params={**value, "model": {**value["model"], "hidden": 1}}, model_dir=out)
    with pytest.raises(ConfigError, match="distributed starts its ranks with the command line"):
        public.train(
            params=value, data=trainer.data, model_dir=out, num_steps=1, transport="distributed"
        )
    without = {name: section for name, section in value.items() if name != "eval_input"}
    with pytest.raises(ConfigError, match="needs a section eval_input in the params"):
        public.train(
            params=without, data=trainer.data, model_dir=out, num_steps=1, mode="train_and_eval"
        )
    assert not out.exists()
    with pytest.raises(ConfigError, match="neither a checkpoint nor a model directory"):
        public.load(out)
    with pytest.raises(ConfigError, match="--split dev: not in"):
        public.evaluate(model_dir, prepared, split="dev")
    with pytest.raises(InputError, match="no such directory"):
        public.evaluate(model_dir, trainer.root / "nowhere")
    with pytest.raises(ConfigError, match="batch_size 0"):
        public.evaluate(model_dir, prepared, batch_size=0)
    with pytest.raises(ConfigError, match="max_new_tokens 0"):
        public.generate(model_dir, "a", max_new_tokens=0)
    with pytest.raises(ConfigError, match="temperature -1"):
        public.generate(model_dir, "a", temperature=-1)
    with pytest.raises(ConfigError, match="a URL"):
        public.load("s3://bucket/model")


def test_a_model_without_a_tokenizer(trainer: Any) -> None:
    out = trainer.root / "out"
    public.train(params=trainer.params, data=trainer.data, model_dir=out, mode="train", num_steps=1)
    with pytest.raises(ConfigError, match=r"the tokenizer is not known.*give tokenizer=RUN"):
        public.load(out)
