"""The story of a training run: config -> data -> model on the backend -> resume -> loop."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.errors import InputError, PrepError, escape_text
from pipeline.core.journal import hold_lock
from pipeline.core.order import samples_before_step
from pipeline.core.words import format_duration, pluralise
from trainer.config import Params, RunConfig
from trainer.convert.conversion import export_checkpoint
from trainer.data import batches, open_training, prepare
from trainer.data.prepare import DataDirectories
from trainer.errors import StopSignal, as_prep_errors, catch_signals
from trainer.generation import infer
from trainer.loop import build, options, ranks, resume
from trainer.loop.build import compile_model
from trainer.loop.loop import TrainingRun
from trainer.loop.options import DEFAULT_PARAMS, TrainOptions, resolve_params
from trainer.report.write import write_report
from trainer.runs import checkpoint, console, jobs, metrics, record
from trainer.runs.console import RunLog, Say


def run_training(request: TrainOptions, say: Say) -> int:
    """Carry out a request; returns the exit code (0, or 128 + signal). Raises PrepError."""
    with as_prep_errors():
        params = resolve_params(request)
        log = RunLog(say)
        console.speak_through(log)
        if not ranks.is_writing_rank(params):
            console.rest_pulse()
        console.doing("opening the data")
        systems = params.runconfig.num_csx if request.target == "CSX" else 0
        listed = request.listed and not ranks.was_launched(params)
        directories = prepare.find_data_directories(request.data)
        if directories is not None:
            params = _checked(params, request, directories, log)
        with jobs.list_job(request.job_labels, systems, log, really=listed) as entry:
            if directories is None:
                console.doing(f"preparing data with {request.data}")
                directories = prepare.data_directories(request.data)
                params = _checked(params, request, directories, log)
            entry.running()
            with ranks.errors_by_name(params), as_prep_errors():
                if request.mode == "infer":
                    code = _infer(params, request, directories, log)
                elif ranks.is_launcher(params):
                    console.rest_pulse()  # from here on rank 0 speaks
                    code = ranks.launch(params, directories, log)
                elif request.trains:
                    code = _train(params, request, directories, log)
                else:
                    code = _evaluate(params, request, directories, log)
            entry.ended(code)
        return code


def _checked(
    params: Params, request: TrainOptions, directories: DataDirectories, log: RunLog
) -> Params:
    """The params, fitted to the data where no file of them is given. Raises for data or
    checkpoints that are missing or do not fit."""
    with ranks.errors_by_name(params):
        if request.params is None:
            params = prepare.fit_params(params, directories)
            if ranks.is_writing_rank(params) and not ranks.is_launcher(params):
                log(
                    f"No --params given: using `{DEFAULT_PARAMS}` with rows of "
                    f"{params.model.max_position_embeddings:,} tokens"
                )
        if not request.trains:
            _to_evaluate(request, params.runconfig)
        if request.trains:
            open_training(params.train_input, params.model, directories.train)
        if request.mode != "infer" and _evaluates(params, request, directories):
            prepare.open_validation(params, directories)
    return params


@contextlib.contextmanager
def _in_directory(params: Params, request: TrainOptions, log: RunLog) -> Iterator[Say]:
    """Hold the directory of the run, with its log, by the rank that writes; other ranks say
    nothing."""
    if not ranks.is_writing_rank(params):
        yield lambda line: None
        return
    with hold_lock(request.model_dir):
        log.open(request.model_dir)
        for note in (*params.notes, *request.notes):
            log(note)
        if not metrics.has_tensorboard():
            log(metrics.TENSORBOARD_MISSING)
        try:
            with as_prep_errors():
                yield log
        except PrepError as error:
            log.failed(str(error))
            raise


def _evaluates(params: Params, request: TrainOptions, directories: DataDirectories) -> bool:
    if request.mode is None:
        return prepare.evaluates(params, directories)
    return request.mode == "train_and_eval" or not request.trains


def _train(params: Params, request: TrainOptions, directories: DataDirectories, log: RunLog) -> int:
    source = open_training(params.train_input, params.model, directories.train)
    validation = None
    if _evaluates(params, request, directories):
        validation = prepare.open_validation(params, directories)
    params = options.resolve_length(params, source.epoch_samples)
    console.doing("building the model")
    with _in_directory(params, request, log) as say, catch_signals() as stop:
        training = build.build_run(params, request, source, stop, say)
        if validation is not None:
            training.validation = build.build_evaluator(
                training.compiled, params, request, validation, stop, say, purge_after=training.step
            )
        if training.writes:
            prepare.keep_tokenizer(directories, request.model_dir)
        try:
            with training.reported_end():
                with contextlib.closing(training):
                    train_to_the_end(training)
                console.doing("writing export and report")
                if training.writes:
                    export_checkpoint(params, request.model_dir, say)
                    places = [dataset.directory for dataset in source.datasets]
                    _report(request.model_dir, places, say)
        except StopSignal as stopped:
            say(f"Stopped by {stopped} after step {training.step}; run the same command to resume")
            return stopped.exit_code
    return 0


def _report(model_dir: Path, places: list[Path], say: Say) -> None:
    try:
        say(f"Report: {write_report(model_dir, places)}")
    except PrepError as error:  # the run is through all the same
        say(f"No report: {error}")


def _evaluate(
    params: Params, request: TrainOptions, directories: DataDirectories, log: RunLog
) -> int:
    source = prepare.open_validation(params, directories)
    saved = [checkpoint.open_checkpoint(path) for path in _to_evaluate(request, params.runconfig)]
    model = {"model": record.model_section(params)}
    for each in saved:
        theirs = {"model": record.complete_record(each.state)["model"]}
        record.refuse_difference(each.path, theirs, model)
    with _in_directory(params, request, log) as say, catch_signals() as stop:
        micro_batch = batches.train_micro_batch(params)
        compiled = compile_model(params, request.target, micro_batch, strict=request.strict)
        validation = build.build_evaluator(compiled, params, request, source, stop, say)
        with contextlib.closing(validation):
            for each in saved:
                checkpoint.load_into(each, compiled.memoryx)
                say(f"Loaded checkpoint {each.path} (step {each.step})")
                try:
                    validation.run(each.step)
                except StopSignal as stopped:
                    return stopped.exit_code
    return 0


def _infer(params: Params, request: TrainOptions, directories: DataDirectories, log: RunLog) -> int:
    """Continue prompts with one checkpoint; of several ranks one does it."""
    if not ranks.is_writing_rank(params):
        return 0
    saved = checkpoint.open_checkpoint(_to_evaluate(request, params.runconfig)[-1])
    start, model = resume.RunStart(saved, ("model",)), {"model": record.model_section(params)}
    resume.check_architecture(start, model, strict=True)
    work = infer.prepare_inference(params, directories, saved, request.target)
    with _in_directory(params, request, log) as say, catch_signals() as stop:
        try:
            work.run(request.model_dir, say, stop.check)
        except StopSignal as stopped:
            return stopped.exit_code
    return 0


def _to_evaluate(request: TrainOptions, run: RunConfig) -> list[Path]:
    """The checkpoints to evaluate, the last one or all. Raises InputError when there are none."""
    if request.mode != "eval_all" and run.checkpoint_path is not None:
        return [run.checkpoint_path]
    saved = checkpoint.list_committed(request.model_dir)
    if not saved:
        hint = "" if request.mode == "eval_all" else "; give --checkpoint_path"
        what = "infer with" if request.mode == "infer" else "evaluate"
        raise InputError(f"{request.model_dir}: no checkpoint to {what}{hint}")
    return saved if request.mode == "eval_all" else saved[-1:]


def train_to_the_end(training: TrainingRun) -> None:
    """Run the loop to the last step, with Model Zoo's opening and closing lines."""
    say, first, log = training.say, training.step, training.log
    if first >= training.last_step:
        say(f"Nothing to do: {training.model_dir} has already reached step {first}")
    else:
        _describe_work(training)
    started = time.monotonic()
    training.run()
    schedule = training.data.schedule
    before, after = (samples_before_step(at + 1, schedule) for at in (first, training.step))
    if log.rate.seconds:
        share = log.stalled / log.rate.seconds
        say(f"Waited for data: {format_duration(log.stalled)}, {share:.1%} of the step time")
    stop = training.callbacks.stop
    if training.is_cut_short and stop is not None:
        because = f": {escape_text(stop.reason)}" if stop.reason else ""
        say(
            f"Stopped by callback {stop.callback} after step {training.step}{because}; the same "
            "call resumes"
        )
    else:
        say("Training completed successfully!")
    spent = time.monotonic() - started
    say(f"Processed {after - before} training sample(s) in {spent:.2f} seconds.")


def _describe_work(training: TrainingRun) -> None:
    compiled, source = training.compiled, training.data.source
    count = sum(parameter.numel() for parameter in compiled.memoryx.parameters.values())
    config, schedule = compiled.config, training.data.schedule
    samples = samples_before_step(training.last_step + 1, schedule)
    epochs = samples / source.epoch_samples
    plural = "" if len(source.datasets) == 1 else f" of {len(source.datasets)} data sets"
    where = f"{config.num_csx} CS-2" if config.target == "CSX" else config.target
    training.say(
        f"Model: {count:,} parameters, {config.precision}, leaves of {config.micro_batch_size}, on "
        f"{where}"
    )
    training.say(
        f"Data: {pluralise(source.rows, 'row')} of {source.max_sequence_length:,} tokens{plural}; "
        f"{pluralise(samples, 'row')} read by step {training.last_step:,} (epochs: {epochs:.3g})"
    )
    training.say(f"Beginning run: steps {training.step + 1} to {training.last_step}")
