"""Metrics of evaluation: modules that add up in float64 and are computed when asked.

Each is called in the evaluation step with keyword arguments, for every micro-batch in order, and
`float(metric)` is its value. Sums do not depend on num_csx.
"""

from wafer_backend.metrics.base import (
    AUC,
    Accuracy,
    Dice,
    FBeta,
    Mean,
    MeanIOU,
    MeanPerClassAccuracy,
    Metric,
    Perplexity,
    PrecisionAtK,
    RecallAtK,
    compute_all_metrics,
    get_all_metrics,
)

AccuracyMetric = Accuracy
AUCMetric = AUC
DiceCoefficientMetric = Dice
FBetaScoreMetric = FBeta
MeanIOUMetric = MeanIOU
MeanMetric = Mean
MeanPerClassAccuracyMetric = MeanPerClassAccuracy
PerplexityMetric = Perplexity
PrecisionAtKMetric = PrecisionAtK
RecallAtKMetric = RecallAtK

__all__ = [
    "AUC",
    "AUCMetric",
    "Accuracy",
    "AccuracyMetric",
    "Dice",
    "DiceCoefficientMetric",
    "FBeta",
    "FBetaScoreMetric",
    "Mean",
    "MeanIOU",
    "MeanIOUMetric",
    "MeanMetric",
    "MeanPerClassAccuracy",
    "MeanPerClassAccuracyMetric",
    "Metric",
    "Perplexity",
    "PerplexityMetric",
    "PrecisionAtK",
    "PrecisionAtKMetric",
    "RecallAtK",
    "RecallAtKMetric",
    "compute_all_metrics",
    "get_all_metrics",
]
