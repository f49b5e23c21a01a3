"""The benchmarks of streaming: that they run, bounded in time, and that contenders train alike."""

import pytest
import torch

from benchmarks.wafer_backend import streaming, streaming_gpu

TINY = "--width 16 --layers 2 --head 8 --length 8 --samples 2 --leaves 2 --steps 2 --warm-up 0"


def test_a_comparison_ends_when_its_minutes_are_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """On a CPU, tiny, both paths: one round in the place of a thousand."""
    monkeypatch.setitem(streaming.SHAPES, "tiny", (16, 1, 2, 64))
    monkeypatch.setattr(streaming, "keep_freed_memory", lambda: None)
    words = "--shapes tiny --tokens 256 --leaves 2 --outside --rounds 1000 --minutes 0 --cpu-time"
    streaming.main(words.split())
    said = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in said] == [
        f"tiny, 256 tokens a leaf, 2 leaves, float32, path {path}" for path in "ab"
    ]
    assert all(line.endswith("times the loop, 1 rounds") for line in said)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_it_says_so_in_one_line(capsys: pytest.CaptureFixture[str]):
    assert streaming_gpu.main([]) == 2
    assert capsys.readouterr().out == streaming_gpu.NO_DEVICE + "\n"


@pytest.mark.parametrize("more", [[], ["--recompute"]])
def test_contenders_train_the_same_model(more: list[str]):
    """On a CPU, tiny; the fourth needs a process group."""
    found = {}
    for contender in ("plain", "resident", "streamed"):
        args = streaming_gpu.parse(
            [*TINY.split(), "--threads", "1", "--contender", contender, *more]
        )
        args.device = "cpu"
        found[contender] = streaming_gpu.measure(args)["losses"]
    assert found["streamed"] == found["resident"]
    assert found["plain"] == pytest.approx(found["resident"], abs=0.01)


def test_the_size_of_the_model_is_told_without_memory():
    model = streaming_gpu.meta_model(streaming_gpu.parse([]))
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == pytest.approx(1.3e9, rel=0.05)
    assert all(p.is_meta for p in model.parameters())
