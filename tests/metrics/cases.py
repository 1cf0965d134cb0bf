"""The streaming metrics, each with the exact value that it stands for."""

from keras_calib import metrics

EXACT = {
    "expected_calibration_error": lambda: metrics.ExpectedCalibrationError(),
    "expected_calibration_error_l2": lambda: metrics.ExpectedCalibrationError(
        norm=2
    ),
    "maximum_calibration_error": lambda: metrics.MaximumCalibrationError(),
    "label_binned_calibration_error": (
        lambda: metrics.LabelBinnedCalibrationError()
    ),
    "overconfidence_error": lambda: metrics.OverconfidenceError(),
    "underconfidence_error": lambda: metrics.UnderconfidenceError(),
    "weighted_overconfidence_error": lambda: metrics.OverconfidenceError(
        confidence_weighted=True
    ),
    "confidence_gap": lambda: metrics.ConfidenceGap(),
    "mean_confidence": lambda: metrics.MeanConfidence(),
    "mean_entropy": lambda: metrics.MeanEntropy(),
    "brier_score": lambda: metrics.BrierScore(),
    "negative_log_likelihood": lambda: metrics.NegativeLogLikelihood(),
    "classwise_calibration_error": (
        lambda: metrics.ClasswiseCalibrationError()
    ),
    "classwise_calibration_error_l2": (
        lambda: metrics.ClasswiseCalibrationError(norm=2)
    ),
}
# From a fine histogram; the tolerance is for 2000 random rows.
APPROXIMATE = {
    "adaptive_calibration_error": (
        lambda: metrics.AdaptiveCalibrationError(),
        1e-3,
    ),
    "adaptive_calibration_error_l2": (
        lambda: metrics.AdaptiveCalibrationError(norm=2),
        1e-3,
    ),
    "label_binned_calibration_error_l1": (
        lambda: metrics.LabelBinnedCalibrationError(norm=1),
        1e-4,
    ),
    "debiased_calibration_error": (
        lambda: metrics.DebiasedCalibrationError(),
        1e-3,
    ),
    "debiased_calibration_error_l1": (
        lambda: metrics.DebiasedCalibrationError(norm=1),
        1e-3,
    ),
    "sweep_calibration_error": (
        lambda: metrics.SweepCalibrationError(),
        1e-3,
    ),
    "ks_calibration_error": (lambda: metrics.KSCalibrationError(), 1e-4),
    "smooth_calibration_error": (
        lambda: metrics.SmoothCalibrationError(),
        1e-5,
    ),
    "classwise_adaptive_calibration_error": (
        lambda: metrics.ClasswiseCalibrationError(binning="mass"),
        2e-3,
    ),
    "marginal_calibration_error": (
        lambda: metrics.ClasswiseCalibrationError(binning="mass", norm=2),
        2e-3,
    ),
    "thresholded_adaptive_calibration_error": (
        lambda: metrics.ClasswiseCalibrationError(
            binning="mass", threshold=0.01
        ),
        2e-3,
    ),
}
ALL = {**EXACT, **{name: make for name, (make, _) in APPROXIMATE.items()}}
