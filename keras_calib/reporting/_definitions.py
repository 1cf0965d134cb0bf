"""What each number of a report means, in a line."""

DEFINITIONS = {
    "accuracy": "fraction of samples whose predicted class is the label",
    "mean_confidence": "mean probability of the predicted class",
    "confidence_gap": "mean confidence minus accuracy; above 0: overconfident",
    "negative_log_likelihood": "mean of -log p(label), in nats; proper score",
    "brier_score": (
        "mean of sum_k (p_k - y_k)^2 over all classes, 0 to 2 (with two "
        "classes twice the score of one of them); proper score"
    ),
    "mean_entropy": "mean entropy of the predictions, in nats",
    "expected_calibration_error": (
        "ECE: mean |accuracy - confidence| over bins of equal width"
    ),
    "expected_calibration_error_l2": "root of the mean squared gap, same bins",
    "maximum_calibration_error": (
        "MCE: largest gap of a bin of equal width; with few samples in a bin "
        "chance makes it large"
    ),
    "adaptive_calibration_error": "ECE over bins with equally many samples",
    "adaptive_calibration_error_l2": "root of the mean squared gap, same bins",
    "label_binned_calibration_error": (
        "root mean square of (accuracy of the bin - confidence of the sample)"
    ),
    "label_binned_calibration_error_l1": "the same, mean absolute",
    "debiased_calibration_error": (
        "L2 error over bins of equal mass without the bias of finite samples"
    ),
    "debiased_calibration_error_l1": "the same for L1; may be negative",
    "sweep_calibration_error": (
        "ECE with as many bins as keep the accuracies monotone"
    ),
    "ks_calibration_error": (
        "largest gap of cumulated confidence and accuracy; no bins"
    ),
    "smooth_calibration_error": "gap smoothed by a kernel; no bins",
    "kernel_calibration_error": "MMCE of the data set, Laplace kernel",
    "overconfidence_error": "the part of the ECE with confidence > accuracy",
    "underconfidence_error": "the part of the ECE with confidence < accuracy",
    "weighted_overconfidence_error": (
        "overconfidence, each bin weighted by its confidence"
    ),
    "area_under_risk_coverage": (
        "mean error rate of the most confident samples, over all fractions"
    ),
    "excess_area_under_risk_coverage": "the same above that of a perfect order",
    "auroc": "how well confidence tells right from wrong predictions",
    "classwise_calibration_error": "mean over classes of their ECE",
    "classwise_calibration_error_l2": "root of the mean squared gap, same bins",
    "classwise_adaptive_calibration_error": (
        "mean over classes of the ECE with bins of equal mass"
    ),
    "marginal_calibration_error": (
        "root mean square over classes, bins of equal mass"
    ),
    "thresholded_adaptive_calibration_error": (
        "TACE: classwise, of probabilities above a threshold"
    ),
    "debiased_marginal_calibration_error": (
        "marginal error without the bias of finite samples"
    ),
    "binary_calibration_error": "ECE of the probability of the second class",
}
# What a reader looks at first, by short names.
HEADLINE = {
    "accuracy": "accuracy",
    "negative_log_likelihood": "NLL",
    "brier_score": "Brier score",
    "expected_calibration_error": "ECE",
    "smooth_calibration_error": "smooth ECE",
    "debiased_calibration_error": "debiased L2 error",
}
