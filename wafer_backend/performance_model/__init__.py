"""How long training would take on CS-2 systems: simulated, calibrated on published ratios.

    size = {"layers": 40, "width": 5120, "heads": 40, "filter": 20480}
    shape = GPTShape(**size, vocabulary=50257, sequence_length=2048)
    predict(shape, batch=1080, num_csx=16)

`python -m wafer_backend.performance_model --validate` shows the model against the paper's tables.
The form, its calibration and its errors stand in docs/performance_model.md.

Limits: ratios between cluster sizes are calibrated, seconds are not; GPT shapes only; dense
arithmetic; no time for loading data, evaluation, checkpoints or a fault.
"""

from wafer_backend.performance_model.calibration import Calibration
from wafer_backend.performance_model.prediction import (
    LayerTime,
    Prediction,
    predict,
    sram_sub_batch,
)
from wafer_backend.performance_model.shape import (
    GPTShape,
    Variant,
    inference_flops_per_sequence,
    parameters_of,
    shape_of,
    training_flops_per_sequence,
)

__all__ = [
    "Calibration",
    "GPTShape",
    "LayerTime",
    "Prediction",
    "Variant",
    "inference_flops_per_sequence",
    "parameters_of",
    "predict",
    "shape_of",
    "sram_sub_batch",
    "training_flops_per_sequence",
]
