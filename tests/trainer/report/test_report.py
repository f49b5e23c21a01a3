"""report.html of real tiny runs: complete, self-contained, and true to the files of the run."""

import json
import re
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from pipeline.core.errors import InputError
from trainer.cli import app
from trainer.config.model_parameters import count_training_flops
from trainer.recipe import loss_at, predicted_loss
from trainer.report.facts import read_run_facts
from trainer.report.write import write_report

RUNNER = CliRunner()


@pytest.fixture
def trained(trainer):
    assert trainer.train("out", mode="train_and_eval") == 0
    return trainer.root / "out"


class Balanced(HTMLParser):
    """Every tag is closed, in order; collects links and the text."""

    void = frozenset({"meta", "input", "br", "link", "img", "line", "path", "circle"})

    def __init__(self):
        super().__init__()
        self.open, self.links, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(path):
    page = Balanced()
    page.feed(path.read_text())
    page.close()
    assert page.open == []
    return page


def change_lines(path, change):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_one_file_that_asks_for_nothing(trained):
    page = parsed(write_report(trained))
    assert all(link.startswith("#") for link in page.links)
    text = (trained / "report.html").read_text()
    assert "<script" not in text
    assert "://" not in text
    assert "default-src 'none'" in text
    assert write_report(trained).read_text() == text  # a function of the files


def test_facts_are_those_of_the_files(trained, trainer):
    facts = read_run_facts(trained)
    last = json.loads((trained / "eval.jsonl").read_text().splitlines()[-1])
    assert (facts.step, facts.samples, facts.tokens) == (6, 42, 42 * 16)
    assert facts.validation_loss == last["loss"]
    assert facts.training_loss == trainer.metrics("out")[-1]["loss"]
    assert facts.flops == 42 * count_training_flops(facts.model)
    assert facts.prediction.optimal == loss_at(facts.flops)
    assert facts.prediction.expected == predicted_loss(facts.flops, facts.tokens / facts.parameters)
    rates = dict(facts.curves.training["tokens_per_second"])
    for line in trainer.metrics("out"):
        assert rates[line["step"]] == pytest.approx(16 * line["samples_per_second"])
    shares = dict(facts.curves.training["stall_share"])
    for line in trainer.metrics("out"):
        seconds = 7 / line["samples_per_second"]
        assert shares[line["step"]] == pytest.approx(line["stall_seconds"] / seconds)
    manifests = {
        json.loads((path / "manifest.json").read_text())["hash"]
        for path in (trained / "checkpoints").iterdir()
    }
    assert {saved.hash for saved in facts.checkpoints} == manifests
    text = " ".join(parsed(write_report(trained)).text)
    for shown in (*manifests, facts.record["datasets"][0]["dataset_hash"], "max_gradient_norm"):
        assert shown in text


def test_shards_alone_have_no_sources_and_are_remembered(trained, trainer):
    result = RUNNER.invoke(app, ["report", str(trained), "--data", str(trainer.data)])
    assert result.output == f"{trained / 'report.html'}\n"
    page = (trained / "report.html").read_text()
    assert "It does not stand in a prep run" in page
    assert "each read 0.84 times on average" in page  # 42 of 50 rows
    assert "each read 0.84 times" in write_report(trained).read_text()
    trainer.data.rename(trainer.root / "gone")
    assert "or it has gone" in write_report(trained).read_text()
    assert "prep trace RUN --train" in (trained / "report.html").read_text()


def test_data_of_another_run_is_refused(trained, trainer, make_split, make_rows):
    other = trainer.root / "other"
    make_split(other / "hdf5" / "train", make_rows(10, seed=9))
    with pytest.raises(InputError, match="was trained on"):
        write_report(trained, [other])
    with pytest.raises(InputError, match="neither a prep run"):
        write_report(trained, [trainer.root])
    result = RUNNER.invoke(app, ["report", str(trainer.root)])
    assert result.exit_code == 3
    assert "not a model directory: no run.json" in result.stderr


def test_a_mixture_tells_epochs_of_each_part(trainer, make_split, make_rows):
    parts = [trainer.root / name for name in ("a", "b")]
    for seed, part in enumerate(parts, 7):
        make_split(part, make_rows(20, seed=seed))
    mixture = [{"data_dir": str(p), "weight": w} for p, w in zip(parts, (1, 0.5), strict=True)]
    params = trainer.configure(train_input={"mixture": mixture})
    assert trainer.train("out", params=params, data=None) == 0
    text = write_report(trainer.root / "out", parts).read_text()
    # 42 samples of epochs of 20 + 10: 28 of the first part, 14 of the second, of 20 rows each
    assert re.findall(r"each read ([\d.]+) times", text) == ["1.4", "0.7"]


def test_sources_stability_and_hostile_names(trained):
    evil = "<script>alert(1)</script>\x1b[31m"

    def per_source(line):
        line["per_source"] = {evil: {"loss": 3.0}, "books": {"loss": 2.0, "n_counted": 5}}

    def stability(line):
        kinds = {"qkv": {"std": 0.02 * line["step"]}, "norm": {"std": 1.0, "underflow": 0}}
        line["stability"] = {"kinds": kinds, "warnings": ["eps"] if line["step"] == 4 else []}
        line["new_figure"] = 0.5
        if line["step"] == 5:
            line["spike"] = 9.5

    change_lines(trained / "eval.jsonl", per_source)
    change_lines(trained / "metrics.jsonl", stability)
    page = parsed(write_report(trained))
    text = " ".join(page.text)
    assert "Validation loss by source" in text
    assert "books" in text
    assert "<script>alert(1)</script>\\x1b[31m" in text  # shown, not run
    assert "<script" not in (trained / "report.html").read_text()
    for title in ("Standard deviation", "Weights lost at the cast, share", "new figure"):
        assert title in text
    assert "a spike of the loss" in text
    assert re.search(r"prep trace RUN --train \S+ --step 5\b", text)
    curves = read_run_facts(trained).curves
    assert curves.warnings == ((4, "eps"),)
    assert curves.spikes == (5,)


def test_a_run_without_a_step_or_an_evaluation(trainer):
    assert trainer.train("out", num_steps=1) == 0
    out = trainer.root / "out"
    assert "not evaluated" in write_report(out).read_text()
    (out / "metrics.jsonl").unlink()
    for path in (out / "checkpoints").glob("*/manifest.json"):
        path.unlink()
    page = write_report(out).read_text()
    assert "No step was run." in page
    assert "No step was logged." in page


def test_a_line_that_is_none_is_named_and_a_cut_one_left_out(trained):
    path = trained / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"step": 7, "lo')
    assert read_run_facts(trained).step == 6
    path.write_text("[]\n" + whole)
    with pytest.raises(InputError, match=r"metrics.jsonl:1: not a line of a run"):
        read_run_facts(trained)
