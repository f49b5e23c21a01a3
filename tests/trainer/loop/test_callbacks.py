"""Callbacks of `train`: what they are given, what they can ask for, and that bits stay equal."""

import dataclasses
import json
import os
import re
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer as public
from pipeline.core.errors import ConfigError
from tests.programs import Program
from trainer import Callback, StopTraining, TrainingError, TrainingState
from trainer.evaluation.loss import Evaluation
from trainer.loop import build

PAGE = Path(__file__).resolve().parents[3] / "docs" / "training.md"
HOOKS = [name for name in vars(Callback) if name.startswith("on_")]


class Diary(Callback):
    """Writes down every hook with the step, and does there what the test says."""

    def __init__(self, **deeds: Any) -> None:
        self.lines: list[str] = []
        self.given: dict[str, list[Any]] = {}
        self.deeds = deeds

    def note(self, hook: str, state: TrainingState, *more: Any) -> Any:
        self.lines.append(f"{hook.removeprefix('on_')} {state.step}")
        self.given.setdefault(hook, []).append((state, *more))
        deed = self.deeds.get(hook)
        return deed(state) if deed is not None else None


def _noting(hook: str) -> Any:
    return lambda self, state, *more: self.note(hook, state, *more)


for _hook in HOOKS:
    setattr(Diary, _hook, _noting(_hook))


def at(step: int, deed: Any) -> Any:
    """Do something after one step only: raise it, or return it."""

    def act(state: TrainingState) -> Any:
        if state.step != step:
            return None
        if isinstance(deed, Exception):
            raise deed
        return deed

    return act


def train(trainer: Any, out: str, *callbacks: Callback, **changes: Any) -> public.TrainingResult:
    """Six steps, evaluated after 3 and 6, saved after 2, 4 and 6."""
    options = {"params": trainer.params, "data": trainer.data, "num_csx": 2, "num_steps": 6}
    return public.train(
        **{**options, "model_dir": trainer.root / out, "callbacks": list(callbacks), **changes}
    )


def test_what_is_told_and_when(trainer: Any) -> None:
    """In order, with what metrics.jsonl, eval.jsonl and the checkpoints have."""
    whole: list[bool] = []

    def look(state: TrainingState) -> None:
        path = state.model_dir / "checkpoints" / f"step_{state.step:07d}" / "manifest.json"
        whole.append(path.is_file())

    diary = Diary(on_after_save_checkpoint=look)
    made = train(trainer, "out", diary)
    in_order = [line for line in diary.lines if not line.startswith("after_save")]
    assert in_order == [
        "train_start 0", "train_batch_end 1", "train_batch_end 2", "train_batch_end 3",
        "validate_start 3", "validate_end 3", "train_batch_end 4", "train_batch_end 5",
        "train_batch_end 6", "validate_start 6", "validate_end 6", "train_end 6",
    ]  # fmt: skip
    steps = [state for (state,) in diary.given["on_train_batch_end"]]
    for state, line in zip(steps, made.metrics(), strict=True):
        for name in ("step", "loss", "learning_rate", "grad_norm"):
            assert getattr(state, name) == line[name]
        assert (state.samples, state.tokens) == (7 * state.step, 7 * 16 * state.step)
        assert (state.model_dir, state.last_step) == (made.model_dir, 6)
    for (state, measured), line in zip(
        diary.given["on_validate_end"], made.evaluations(), strict=True
    ):
        assert isinstance(measured, Evaluation)
        assert (state.step, measured.loss) == (line["step"], line["loss"])
    saved = diary.given["on_after_save_checkpoint"]
    assert [(state.step, path.name) for state, path in saved] == [
        (step, f"step_{step:07d}") for step in (2, 4, 6)
    ]
    assert whole == [True] * 3
    assert diary.lines.index("after_save_checkpoint 6") == len(diary.lines) - 2
    ((start,),) = diary.given["on_train_start"]
    assert (start.loss, start.learning_rate, start.grad_norm) == (None, None, None)
    assert (made.model_dir / "report.html").is_file()
    assert made.stopped is None


def test_a_state_cannot_be_changed(trainer: Any) -> None:
    diary = Diary()
    train(trainer, "out", diary, num_steps=1)
    ((state,),) = diary.given["on_train_batch_end"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.loss = 0.0


def test_a_skipped_step_has_no_gradient_norm(trainer: Any) -> None:
    params = trainer.configure(
        model={"mixed_precision": True, "fp16_type": "float16"},
        optimizer={"loss_scaling_factor": "dynamic"},
    )
    diary = Diary()
    made = train(trainer, "out", diary, params=params)
    told = [state.grad_norm for (state,) in diary.given["on_train_batch_end"]]
    assert told == [line["grad_norm"] for line in made.metrics()]
    assert None in told


def test_bits_are_those_of_a_run_without_callbacks(trainer: Any) -> None:
    """Whatever callbacks do to the generators, threads and gradients of torch, and however often
    they evaluate and save."""

    def meddle(state: TrainingState) -> set[str]:
        torch.manual_seed(state.step)
        torch.rand(3)
        torch.set_num_threads(2)
        torch.set_grad_enabled(False)
        return {"validate", "save"}

    def generate(state: TrainingState) -> None:
        public.evaluate(state.model_dir, trainer.data, eval_steps=1, split="validation")

    params = trainer.configure(model={"dropout_rate": 0.2})
    plain = train(trainer, "plain", params=params)
    diary = Diary(on_train_batch_end=meddle, on_after_save_checkpoint=generate)
    try:
        train(trainer, "told", diary, params=params)
    finally:
        torch.set_grad_enabled(True)
        torch.set_num_threads(1)
    assert len(diary.given["on_validate_end"]) == 6
    lines, _, *checkpoint = trainer.bits("plain")
    told, _, *other = trainer.bits("told")
    assert (lines, checkpoint) == (told, other)
    assert (plain.model_dir / "run.json").read_bytes() == (
        trainer.root / "told" / "run.json"
    ).read_bytes()


def test_what_a_step_can_ask_for(trainer: Any) -> None:
    """An evaluation and a checkpoint where none is due, once each."""
    ask = Diary(on_train_batch_end=at(1, {"validate", "save"}), on_validate_end=at(3, {"save"}))
    told = Diary()
    made = train(
        trainer, "out", ask, told, params=trainer.configure(runconfig={"checkpoint_steps": 0})
    )
    assert [line["step"] for line in made.evaluations()] == [1, 3, 6]
    assert [state.step for state, _ in told.given["on_after_save_checkpoint"]] == [1, 3, 6]


def test_what_the_first_evaluation_of_a_resumed_run_asks_for(trainer: Any) -> None:
    """Step 3 has a checkpoint and no evaluation yet; no other step is saved in its place."""
    params = trainer.configure(runconfig={"checkpoint_steps": 0})
    train(trainer, "out", params=params, mode="train", num_steps=3)
    ask = Diary(on_validate_end=at(3, {"save"}))
    train(trainer, "out", ask, params=params)
    assert [state.step for state, _ in ask.given["on_validate_end"]] == [3, 6]
    assert [state.step for state, _ in ask.given["on_after_save_checkpoint"]] == [6]


def test_the_room_on_the_disk_is_for_all_checkpoints_that_may_be_asked_for(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as are kept, and the one that is being written."""
    needs: list[build.DiskNeed] = []
    monkeypatch.setattr(build, "check_disk_space", lambda path, need, say: needs.append(need))
    params = trainer.configure(runconfig={"checkpoint_steps": 0, "max_checkpoints": 3})
    train(trainer, "plain", params=params)
    train(trainer, "told", Diary(), params=params)
    assert [need.checkpoints for need in needs] == [1, 4]


@pytest.mark.parametrize("hook", HOOKS[:5])
def test_a_callback_stops_the_run_and_the_same_call_resumes(trainer: Any, hook: str) -> None:
    """With a checkpoint of the step, the reason in run.json, and export and report; then to the
    bits of a run that was not stopped."""
    train(trainer, "whole")
    step = {"on_train_start": 0, "on_train_batch_end": 5, "on_after_save_checkpoint": 2}.get(
        hook, 3
    )
    stopper, other = Diary(**{hook: at(step, StopTraining("enough"))}), Diary()
    stopped = train(trainer, "out", stopper, other)
    last = stopped.last_step
    assert last == step or (hook == "on_after_save_checkpoint" and 2 <= last < 6)
    assert stopped.checkpoint is not None
    assert stopped.checkpoint.name == f"step_{last:07d}"
    assert stopped.stopped == "enough"
    record = json.loads((stopped.model_dir / "run.json").read_bytes())
    assert record["stopped"] == {"step": last, "callback": f"Diary.{hook}", "reason": "enough"}
    assert (stopped.model_dir / "report.html").is_file()
    log = (stopped.model_dir / "latest_run.log").read_text()
    assert f"Stopped by callback Diary.{hook} after step {last}: enough" in log
    assert other.lines == stopper.lines
    assert other.lines[-1] == f"train_end {last}"
    state = json.loads((stopped.checkpoint / "state.json").read_bytes())
    assert "stopped" not in state
    resumed = train(trainer, "out")
    assert (resumed.last_step, resumed.stopped) == (6, None)
    assert trainer.bits("out") == trainer.bits("whole")
    assert "stopped" not in json.loads((stopped.model_dir / "run.json").read_bytes())


def test_a_stop_after_the_last_step_is_none(trainer: Any) -> None:
    made = train(trainer, "out", Diary(on_train_batch_end=at(6, StopTraining("late"))))
    assert (made.last_step, made.stopped) == (6, None)


@pytest.mark.parametrize("hook", HOOKS[:6])
def test_a_callback_that_fails_is_named_and_the_same_call_resumes(trainer: Any, hook: str) -> None:
    """Of the other callbacks, all are told how the run ended; checkpoints are kept."""
    train(trainer, "whole")
    step = {"on_train_start": 0, "on_train_batch_end": 5, "on_train_end": 6}.get(hook, 3)
    step = 4 if hook == "on_after_save_checkpoint" else step
    failing, other = Diary(**{hook: at(step, KeyError("mine"))}), Diary()
    said = rf"^callback Diary\.{hook} failed at step {step}: KeyError: 'mine'; checkpoints are kept"
    with pytest.raises(TrainingError, match=said) as raised:
        train(trainer, "out", failing, other)
    assert isinstance(raised.value.__cause__, KeyError)
    assert other.lines[-1].startswith("train_exception ")
    assert other.given["on_train_exception"][0][1] is raised.value
    kept = sorted(path.name for path in (trainer.root / "out" / "checkpoints").glob("step_*"))
    expected = ["step_0000002", "step_0000004", "step_0000006"]
    if hook != "on_after_save_checkpoint":  # where the loop learns of it, perhaps a step later
        assert kept == [name for name in expected if int(name[-1]) <= step][-2:]
    assert "stopped" not in json.loads((trainer.root / "out" / "run.json").read_bytes())
    train(trainer, "out")
    assert trainer.bits("out") == trainer.bits("whole")


def test_the_message_of_an_error_stays_one_line(trainer: Any) -> None:
    failing = Diary(on_train_start=at(0, ValueError("two\nlines")))
    with pytest.raises(TrainingError, match=r"ValueError: two\\nlines; checkpoints are kept"):
        train(trainer, "out", failing)


def test_other_errors_are_told_and_stay_what_they_are(trainer: Any) -> None:
    """Also where the hook that is told fails."""
    params = trainer.configure(optimizer={"learning_rate": 1e30})
    first, second = Diary(on_train_exception=at(1, KeyError("mine"))), Diary()
    with pytest.raises(TrainingError, match="step 2: ") as raised:
        train(trainer, "out", first, second, params=params, mode="train")
    for diary in (first, second):
        ((state, error),) = diary.given["on_train_exception"]
        assert (state.step, error) == (1, raised.value)
        assert "on_train_end" not in diary.given
    log = (trainer.root / "out" / "latest_run.log").read_text()
    assert "callback Diary.on_train_exception failed at step 1: KeyError: 'mine'" in log


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_is_told_as_what_is_raised(trainer: Any, number: int, raised: Any) -> None:
    def interrupt(state: TrainingState) -> None:
        if state.step == 3:
            os.kill(os.getpid(), number)

    diary = Diary(on_train_batch_end=interrupt)
    with pytest.raises(raised):
        train(trainer, "out", diary, mode="train")
    ((state, error),) = diary.given["on_train_exception"]
    assert state.step == 3
    assert isinstance(error, raised)
    assert diary.given["on_after_save_checkpoint"][-1][1].name == "step_0000003"


@pytest.mark.parametrize(
    ("hook", "answer", "expected"),
    [
        ("on_train_batch_end", "save", r"'save' at step 3; expected None or a set of 'save', 'val"),
        ("on_train_batch_end", {"sav"}, r"{'sav'} at step 3; expected None or a set of 'save', '"),
        ("on_train_batch_end", True, r"True at step 3; expected None or a set of 'save', 'valid"),
        ("on_validate_end", {"validate"}, r"{'validate'} at step 3; expected None or a set of 's"),
        ("on_validate_start", {"save"}, r"{'save'} at step 3; expected None \("),
    ],
)
def test_answers_that_mean_nothing(trainer: Any, hook: str, answer: Any, expected: str) -> None:
    with pytest.raises(TrainingError, match=rf"^callback Diary\.{hook} returned {expected}"):
        train(trainer, "out", Diary(**{hook: at(3, answer)}))


def test_a_run_without_evaluation_cannot_validate(trainer: Any) -> None:
    asks = Diary(on_train_batch_end=at(1, {"validate"}))
    with pytest.raises(
        TrainingError, match=r"None or a set of 'save' \(after a step of a run that"
    ):
        train(trainer, "out", asks, mode="train")


class Misspelled(Callback):
    """A hook that would never be called."""

    def on_train_batch_ended(self, state: TrainingState) -> None:
        """Never."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Diary(), r"^callbacks: expected a list of instances of trainer\.Callback, not Diary <"),
        (
            [Diary],
            r"^callbacks\[0\]: .*, not the class Diary; give an instance, such as Diary\(\)$",
        ),
        ([Diary(), print], r"^callbacks\[1\]: expected an instance of a subclass of trainer\.Cal"),
        ([Misspelled()], r"Misspelled\.on_train_batch_ended is no hook; did you mean 'on_train_b"),
    ],
)
def test_what_is_no_callback(trainer: Any, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(trainer, "out", callbacks=given)
    assert not (trainer.root / "out").exists()


@pytest.mark.parametrize("transport", ["inline", "simulated"])
def test_hooks_run_where_train_was_called(trainer: Any, transport: Any) -> None:
    """In its process and on its thread, whatever writes checkpoints and reads ahead."""
    places = set()

    def note(state: TrainingState) -> None:
        places.add((os.getpid(), threading.current_thread()))

    train(trainer, "out", Diary(**dict.fromkeys(HOOKS, note)), transport=transport)
    assert places == {(os.getpid(), threading.current_thread())}


@pytest.mark.crash
def test_of_several_ranks_one_calls_them(trainer: Any) -> None:
    """Rank 0 alone, whatever the others were given; all stop at its step and resume."""
    params = trainer.configure(runconfig={"processes": 2, "liveness": 20.0})
    train(trainer, "whole", params=params)

    def ranks(*callbacks: Callback) -> list[Program]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]

        def call() -> None:
            rank = os.environ["RANK"]
            diary = Diary(**callbacks[0].deeds) if callbacks and rank == "0" else Diary()
            mine = [diary] if callbacks or rank == "1" else []
            made = train(trainer, "out", *mine, params=params, transport="distributed")
            print(diary.lines, made.stopped)

        where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return [Program(call, RANK=str(rank), LOCAL_RANK=str(rank), **where) for rank in (0, 1)]

    asks = Diary(
        on_train_batch_end=lambda state: (
            at(1, {"validate", "save"})(state) or at(5, StopTraining("enough"))(state)
        )
    )
    first = ranks(asks)
    assert [each.wait() for each in first] == [0, 0], first[0].err + first[1].err
    assert "'train_batch_end 5'" in first[0].out
    assert first[0].out.endswith("] enough\n")
    assert first[1].out == "[] enough\n"
    record = json.loads((trainer.root / "out" / "run.json").read_bytes())
    assert record["stopped"]["step"] == 5
    evaluated = (trainer.root / "out" / "eval.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in evaluated] == [1, 3]
    failed = ranks(Diary(on_train_batch_end=at(6, KeyError("mine"))))
    assert [each.wait() for each in failed] == [1, 1]
    assert "callback Diary.on_train_batch_end failed at step 6: KeyError: 'mine'" in failed[0].err
    assert "LostRankError" in failed[1].err
    again = ranks()
    assert [each.wait() for each in again] == [0, 0], again[0].err + again[1].err
    lines, _, *checkpoint = trainer.bits("out")
    whole, _, *other = trainer.bits("whole")
    assert (lines, checkpoint) == (whole, other)


def test_the_example_of_the_page(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """On data and params of the test, by which the loss rises at once."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    params = trainer.configure(optimizer={"learning_rate": 3.0}, runconfig={"eval_frequency": 1})

    here = {"params": params, "data": trainer.data, "model_dir": trainer.root / "out"}
    original = public.train

    def train_here(**given: Any) -> public.TrainingResult:
        return original(**{**given, **here, "num_steps": 6})

    monkeypatch.setattr(public, "train", train_here)
    exec(code, {})
    *steps, last = capsys.readouterr().out.splitlines()
    step, tokens, *_ = steps[-1].split()
    assert re.fullmatch(rf"{step} \d+\.\d{{3}} nats after \d+\.\d{{3}}", last)
    assert (int(tokens), int(step) < 6) == (7 * 16 * int(step), True)


def test_metrics_are_sent_as_those_of_the_same_run(trainer: Any) -> None:
    """`train track` takes what a run logs after it was stopped and resumed."""
    from trainer.report import track

    sent: list[int] = []

    class Tracker:
        def log(self, step: int, values: Any) -> None:
            sent.append(step)

        def close(self) -> None:
            """Nothing is open."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(track, "_open", lambda *given: Tracker())
        options = track.TrackOptions(to="mlflow")
        stop = Diary(on_train_batch_end=at(2, StopTraining("enough")))
        out = train(trainer, "out", stop, mode="train").model_dir
        track.send_metrics(out, options, trainer.said.append)
        train(trainer, "out", mode="train")
        track.send_metrics(out, options, trainer.said.append)
    assert sent == [1, 2, 3, 4, 5, 6]
