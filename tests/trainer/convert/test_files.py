"""Files: safetensors byte for byte, checkpoints that train, outputs that are whole or refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import tokenizers
import torch
import yaml

from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.hashes import tree_hash
from pipeline.core.mirror.paths import TEMP_MARK
from pipeline.tokenizers.definition import load_definition
from tests.trainer.convert.models import MUP, logits, make, state_of, with_weights
from trainer.config import load_params
from trainer.convert import conversion, lazy_tensors, sources, targets
from trainer.convert.lazy_tensors import wrap_tensors
from trainer.runs import checkpoint, record


def request(checkpoint, source, target, out, **changes) -> conversion.CheckpointConvertOptions:
    return conversion.CheckpointConvertOptions(
        checkpoint=Path(checkpoint), source=source, target=target, out=Path(out), **changes
    )


def convert(*args, **changes) -> list[str]:
    said: list[str] = []
    conversion.convert_checkpoint(request(*args, **changes), said.append)
    return said


@pytest.fixture
def trained(tmp_path: Path):
    """(model directory of ours, its model, its config), as training would save it."""

    def write(family: str = "gpt2", **changes):
        model, config = make(family, **changes)
        out = tmp_path / "trained"
        targets.write_wafermill(out, state_of(model), config, step=7)
        return out, model, config

    return write


def test_a_file_has_the_bytes_of_the_library(tmp_path: Path):
    tensors = {
        "b": torch.randn(3, 4), "a": torch.randn(2), "half": torch.randn(5).to(torch.bfloat16),
        "long": torch.arange(3), "empty": torch.zeros(0, 2), "ü": torch.tensor(1.5),
    }  # fmt: skip
    lazy_tensors.write_safetensors(tmp_path / "x", wrap_tensors(tensors), {"format": "pt"})
    expected = safetensors.torch.save(tensors, {"format": "pt"})
    assert (tmp_path / "x").read_bytes() == expected
    read = lazy_tensors.read_safetensors(tmp_path / "x")
    assert all(torch.equal(read[name].read(), tensors[name]) for name in tensors)


def test_files_are_cut_between_tensors():
    tensors = wrap_tensors({str(i): torch.zeros(10) for i in range(5)})
    assert [list(group) for group in checkpoint.cut_by_size(tensors, 80)] == [
        ["0", "1"], ["2", "3"], ["4"],
    ]  # fmt: skip
    assert [len(group) for group in checkpoint.cut_by_size(tensors, 1)] == [1] * 5


def test_a_checkpoint_has_the_bytes_that_training_writes(tmp_path: Path):
    model, config = make()
    targets.write_wafermill(tmp_path / "ours", state_of(model), config, 7, max_file_bytes=20_000)
    params = load_params(tmp_path / "ours" / "params.yaml")
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    path = checkpoint.save_checkpoint(
        tmp_path / "theirs", 7, checkpoint.Tensors(weights, {}),
        {"model": record.model_section(params)}, max_file_bytes=20_000,
    )  # fmt: skip
    ours = {p.name: p.read_bytes() for p in (tmp_path / "ours/checkpoints" / path.name).iterdir()}
    assert ours == {p.name: p.read_bytes() for p in path.iterdir()}
    assert len(ours) > 4


def test_masters_are_fp32(tmp_path: Path):
    model, config = make()
    half = wrap_tensors({n: p.detach().to(torch.bfloat16) for n, p in model.named_parameters()})
    targets.write_wafermill(tmp_path, half, config)
    weights = checkpoint.read_weights(checkpoint.open_checkpoint(checkpoint.find_newest(tmp_path)))
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    name = "blocks.0.attention.qkv.weight"
    assert torch.equal(weights[name].to(torch.bfloat16), half[name].read())


def test_the_tokenizer_of_a_model_directory_goes_along(trained, tmp_path: Path):
    out, _, _ = trained(vocab_size=300)
    kept = byte_tokenizer(out)
    (said, *_) = convert(out, "wafermill", "hf", tmp_path / "hf")
    assert said == f"GPT2LMHeadModel; tokenizer: {kept}"
    exported = load_definition(tmp_path / "hf")
    assert exported.content_hash == load_definition(kept).content_hash
    assert (exported.eos_token, exported.vocab_size) == ("<end>", 257)
    kept.unlink()
    (said, *_) = convert(out, "wafermill", "hf", tmp_path / "without")
    assert said == "GPT2LMHeadModel; tokenizer: none is known; give --tokenizer"
    assert not (tmp_path / "without" / "tokenizer.json").exists()


def byte_tokenizer(directory: Path) -> Path:
    """tokenizer.json with the 256 bytes and an EOS, and its config, in the directory."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({letter: i for i, letter in enumerate(alphabet)}, [])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    made.save(str(directory / "tokenizer.json"))
    return directory / "tokenizer.json"


def test_the_gpt2_tokenizer_of_a_model_directory_is_exported_as_gpt2(trained, tmp_path: Path):
    """A prep run keeps GPT-2's as tokenizer.json; its export has the two classic files too."""
    out, _, _ = trained(vocab_size=50_257, num_hidden_layers=1)
    (out / "tokenizer.json").write_text(load_definition("gpt2").json)
    (said, *_) = convert(out, "wafermill", "hf", tmp_path / "hf")
    assert said == "GPT2LMHeadModel; tokenizer: gpt2"
    assert (tmp_path / "hf" / "merges.txt").is_file()


@pytest.mark.parametrize("family", ["gpt2", "gptj", "gpt_neox", "llama"])
def test_through_hugging_face_and_back(family: str, trained, tmp_path: Path):
    out, model, _ = trained(family)
    convert(out, "wafermill", "hf", tmp_path / "hf", model=family)
    convert(tmp_path / "hf", "hf", "wafermill", tmp_path / "back")
    params = load_params(tmp_path / "back" / "params.yaml")
    found = checkpoint.open_checkpoint(checkpoint.find_newest(tmp_path / "back"))
    weights = checkpoint.read_weights(found)
    assert all(torch.equal(weights[n], p.detach()) for n, p in model.named_parameters())
    assert torch.equal(logits(with_weights(params.model, wrap_tensors(weights))), logits(model))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "gpt_neox",
            {"rotary_pct": 0.25, "rope_parameters": None},
            "rotary_pct 0.25 of a head of 12 units is 3; expected an even number of units",
        ),
        (
            "gptj",
            {"rotary_dim": 5},
            "rotary_dim 5 is odd; expected an even number, because units are rotated in pairs",
        ),
        ("gpt2", {"n_head": 5}, "hidden_size 48 is not a multiple of num_heads 5"),
        ("gpt2", {"layer_norm_epsilon": -1}, "layer_norm_epsilon: Input should be greater than"),
    ],
)
def test_a_config_that_makes_no_model_is_one_line(
    family: str, changes: dict[str, object], message: str, trained, tmp_path: Path
):
    out, _, _ = trained(family)
    convert(out, "wafermill", "hf", tmp_path / "hf", model=family)
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConfigError) as caught:
        convert(tmp_path / "hf", "hf", "wafermill", tmp_path / "back")
    assert f"{path}: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_through_mdl_and_back(trained, tmp_path: Path):
    out, model, config = trained("gpt2", **MUP)
    convert(out, "wafermill", "mdl", tmp_path / "mdl")
    path = tmp_path / "mdl" / "checkpoint_7.mdl"
    params = tmp_path / "mdl" / "params.yaml"
    assert load_params(params).model == config
    convert(path, "cs-2.2", "wafermill", tmp_path / "back", params=params)
    found = checkpoint.open_checkpoint(checkpoint.find_newest(tmp_path / "back"))
    weights = checkpoint.read_weights(found)
    assert all(torch.equal(weights[n], p.detach()) for n, p in model.named_parameters())
    said = convert(path, "mdl", "hf", tmp_path / "hf", params=params)
    assert "GPT2LMHeadModel" in said[0]


def test_a_mdl_file_stores_tied_weights_once(trained, tmp_path: Path):
    from wafer_backend.storage import checkpoint as mdl

    out, _, _ = trained()
    convert(out, "wafermill", "mdl", tmp_path / "mdl")
    state = mdl.read_checkpoint(tmp_path / "mdl" / "checkpoint_7.mdl")
    assert state["global_step"] == 7
    model = state["model"]
    assert model["model.lm_head.weight"] is model["model.embedding_layer.word_embeddings.weight"]


@pytest.mark.parametrize("target", ["hf", "mdl"])
def test_weights_alone_are_converted(target: str, tmp_path: Path):
    """Neither the optimizer's state nor how far the data was read."""
    model, config = make()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    optimizer = {f"{name}.exp_avg": torch.ones_like(w) for name, w in weights.items()}
    state = {"model": config.model_dump(mode="json"), "samples": 12}
    for name, tensors in (("with", optimizer), ("without", {})):
        path = checkpoint.save_checkpoint(
            tmp_path / name / "ours", 7, checkpoint.Tensors(weights, tensors), state
        )
        convert(path, "wafermill", target, tmp_path / name / "out")
    made = {
        name: {
            p.name: p.read_bytes()
            for p in (tmp_path / name / "out").iterdir()
            if p.name != "conversion.json"
        }
        for name in ("with", "without")
    }
    assert made["with"] == made["without"]


def test_an_import_can_be_evaluated_and_tuned(trainer, make_rows, tmp_path: Path):
    """`train` computes the loss of converted weights, and begins a new run with them."""
    model, config = make(hidden_size=16, num_hidden_layers=1, num_heads=2, filter_size=32)
    targets.write_wafermill(tmp_path / "imported", state_of(model), config)
    found = checkpoint.find_newest(tmp_path / "imported")
    assert trainer.train("evaluated", checkpoint_path=found, mode="eval") == 0
    measured = json.loads((tmp_path / "evaluated" / "eval.jsonl").read_text().splitlines()[-1])
    features = torch.from_numpy(make_rows(9, seed=2)).long().unbind(1)
    names = ("input_ids", "attention_mask", "labels")
    with torch.no_grad():
        loss_sum, counted = model(dict(zip(names, features, strict=True)))
    assert measured["loss"] == pytest.approx(float(loss_sum / counted), rel=1e-5)
    tuned = {"checkpoint_path": found, "load_checkpoint_states": "model", "num_steps": 1}
    assert trainer.train("tuned", **tuned) == 0
    origin = json.loads((tmp_path / "tuned" / "run.json").read_text())["initialized_from"]
    assert origin["path"] == str(found)


def test_the_same_command_again_verifies(trained, tmp_path: Path):
    out, _, _ = trained()
    convert(out, "wafermill", "hf", tmp_path / "hf")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "hf").iterdir()}
    said = convert(out, "wafermill", "hf", tmp_path / "hf", model="gpt2")
    after = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (tmp_path / "hf").iterdir()}
    assert said == [f"{tmp_path / 'hf'} already holds this conversion, verified"]
    assert before == after
    (tmp_path / "hf" / "config.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"config\.json: damaged"):
        convert(out, "wafermill", "hf", tmp_path / "hf")


def test_another_conversion_is_refused(trained, tmp_path: Path):
    out, _, _ = trained()
    convert(out, "wafermill", "hf", tmp_path / "hf")
    with pytest.raises(ConfigError, match="shard_bytes was"):
        convert(out, "wafermill", "hf", tmp_path / "hf", shard_bytes=10_000)
    with pytest.raises(ConfigError, match="llama needs rotary"):
        convert(out, "wafermill", "hf", tmp_path / "llama", model="llama")
    assert not (tmp_path / "llama").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        convert(out, "wafermill", "hf", tmp_path / "full")
    with pytest.raises(ConfigError, match="this is a file"):
        convert(out, "wafermill", "hf", tmp_path / "full" / "notes.txt")


def test_an_interrupted_conversion_has_no_config_json_and_goes_on(
    trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, _, _ = trained()
    whole, publish = lazy_tensors.write_safetensors, []

    def fail_at_second(path, tensors, metadata=None):
        publish.append(path)
        if len(publish) == 2:
            raise KeyboardInterrupt
        return whole(path, tensors, metadata)

    monkeypatch.setattr(lazy_tensors, "write_safetensors", fail_at_second)
    with pytest.raises(KeyboardInterrupt):
        convert(out, "wafermill", "hf", tmp_path / "hf", shard_bytes=20_000)
    assert not (tmp_path / "hf" / "config.json").exists()
    monkeypatch.undo()
    convert(out, "wafermill", "hf", tmp_path / "hf", shard_bytes=20_000)
    convert(out, "wafermill", "hf", tmp_path / "once", shard_bytes=20_000)
    assert tree_hash(tmp_path / "hf") == tree_hash(tmp_path / "once")


def test_a_conversion_killed_before_its_first_record_goes_on(trained, tmp_path: Path):
    out, _, _ = trained()
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / f"{TEMP_MARK}conversion.json-1-ab").write_text("{")
    convert(out, "wafermill", "hf", tmp_path / "hf")
    convert(out, "wafermill", "hf", tmp_path / "once")
    assert tree_hash(tmp_path / "hf") == tree_hash(tmp_path / "once")


def test_a_damaged_checkpoint_is_refused(trained, tmp_path: Path):
    out, _, _ = trained()
    file = next(checkpoint.find_newest(out).glob("weights-*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(IntegrityError, match="weights-00000"):
        convert(out, "wafermill", "hf", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_config_of_another_model_is_refused(trained, tmp_path: Path):
    out, _, _ = trained()
    params = yaml.safe_load((out / "params.yaml").read_text())
    params["model"]["filter_size"] = 80
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(params))
    with pytest.raises(InputError, match="config expects"):
        convert(out, "wafermill", "hf", tmp_path / "hf", params=tmp_path / "other.yaml")


@pytest.mark.parametrize(
    ("source", "target", "changes", "message"),
    [
        ("hf", "hf", {}, "nothing to convert"),
        ("cs-9.9", "hf", {}, "expected wafermill, hf, mdl or cs-1.7"),
        ("mdl", "hf", {}, "give --params"),
        ("hf", "mdl", {"params": Path("x")}, "--params has no effect"),
        ("wafermill", "mdl", {"model": "gpt2"}, "--model has no effect"),
    ],
)
def test_what_makes_no_sense_is_refused(source, target, changes, message, trained, tmp_path: Path):
    out, _, _ = trained()
    with pytest.raises(ConfigError, match=message):
        convert(out, source, target, tmp_path / "x", **changes)


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "absent.safetensors"])
def test_an_index_names_files_beside_it_only(name: str, tmp_path: Path):
    (tmp_path / "elsewhere.safetensors").write_bytes(b"")
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / sources.INDEX).write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(InputError, match="not a file next to it"), sources.open_hf(inside):
        pass


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, (1 << 60).to_bytes(8, "little") + b"{}"])
def test_a_file_that_is_no_safetensors_is_named(data: bytes, tmp_path: Path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"model\.safetensors: not a safetensors file"):
        lazy_tensors.read_safetensors(path)


def test_one_tensor_at_a_time_is_read(tmp_path: Path):
    """Every tensor is read and written before the next one is read."""
    open_now: list[int] = []
    most = SimpleNamespace(seen=0)

    class Watched(torch.Tensor):
        def __del__(self):
            open_now.pop()

    def read():
        open_now.append(1)
        most.seen = max(most.seen, len(open_now))
        return torch.zeros(1000).as_subclass(Watched)

    tensors = {str(i): lazy_tensors.LazyTensor((1000,), torch.float32, read) for i in range(6)}
    lazy_tensors.write_safetensors(tmp_path / "x", tensors)
    assert most.seen <= 2
