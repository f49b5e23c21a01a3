"""The model card: HF front matter, facts of the files, `unknown` for the rest."""

import json
import re

import pytest
import yaml
from typer.testing import CliRunner

from trainer.cli import app
from trainer.report.write import to_markdown, write_card

RUNNER = CliRunner()


@pytest.fixture
def trained(trainer):
    assert trainer.train("out", mode="train_and_eval") == 0
    return trainer.root / "out"


def cells(card, name):
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", card, re.MULTILINE)
    return row


def test_front_matter_and_facts(trained):
    card = write_card(trained).read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["license"] == "unknown"
    assert front["pipeline_tag"] == "text-generation"
    assert (
        cells(card, "parameters") == f"{61 * 16 + 16 * 16 + 4 * (256 + 16) + 2 * 512 + 48 + 96:,}"
    )
    assert cells(card, "batch") == "7 sequences"
    assert cells(card, "peak learning rate") == "0.01"
    assert cells(card, "learning rate").startswith("Linear 0 to 0.01 in 3 steps, then CosineDecay")
    loss = json.loads((trained / "eval.jsonl").read_text().splitlines()[-1])["loss"]
    assert f"**{loss:.4f}** nats per token" in card
    assert "Sources: unknown. Licences: unknown." in card
    assert "about 20 are compute-optimal" in card
    assert card.endswith("--step N`.\n")


def test_a_card_that_is_there_is_kept(trained, trainer):
    other = trainer.root / "card.md"
    result = RUNNER.invoke(app, ["card", str(trained), "--out", str(other)])
    assert result.output == f"{other}\n"
    other.write_text("mine")
    result = RUNNER.invoke(app, ["card", str(trained), "--out", str(other)])
    assert result.exit_code == 2
    assert "this file already exists" in result.stderr
    assert other.read_text() == "mine"


def test_the_command_of_the_last_start_cannot_end_its_block(trained):
    log = trained / "latest_run.log"
    real = log.resolve()
    real.write_text("2026-01-01 INFO:   Command: train CPU ```\x1b\n")
    card = write_card(trained).read_text()
    assert "train CPU '''\\x1b\n```" in card
    assert card.count("```") == 2


def test_text_from_data_is_no_markup():
    assert to_markdown("a|b*<img>`\n") == "a\\|b\\*&lt;img&gt;\\`\\\\n"


def test_schedules_of_batches_and_mup(trainer):
    steps = [{"from_step": 1, "batch_size": 4}, {"from_step": 3, "batch_size": 8}]
    path = trainer.configure(
        train_input={"batch_size_schedule": steps, "batch_size": 4},
        model={"mup_base_hidden_size": 8},
    )
    assert trainer.train("mup", params=path, num_steps=4) == 0
    card = write_card(trainer.root / "mup").read_text()
    assert cells(card, "batch") == "4 sequences → 8 sequences (from step 3)"
    assert cells(card, "parametrization") == "muP, base width 8 (m_width 2), m_emb 1"
    assert "- mup" in card
    assert "Not evaluated" in card


def test_windows_and_experts(trainer):
    model = {
        "moe": {"num_experts": 4, "top_k": 2, "num_shared_experts": 1},
        "attention_sliding_window_length": 8,
        "sliding_window_every_other_decoder_layer": True,
    }
    assert trainer.train("mixture", params=trainer.configure(model=model), num_steps=1) == 0
    card = write_card(trainer.root / "mixture").read_text()
    assert cells(card, "experts") == "4, 2 for each token, 1 for all"
    assert cells(card, "attention window") == "8 tokens, every other block"
