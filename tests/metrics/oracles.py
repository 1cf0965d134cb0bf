"""Small sets with known errors. All numbers are float64, by plain loops."""

import numpy as np

# Binary events: every edge of five bins is hit, 0 and 1 too.
CONFIDENCE = np.array(
    [0, 0.05, 0.2, 0.2, 0.35, 0.4, 0.55, 0.6, 0.75, 0.8, 1, 1]
)
CORRECT = np.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0.0])

PROBABILITIES = np.array(
    [
        [0.70, 0.20, 0.10],
        [0.10, 0.85, 0.05],
        [0.30, 0.25, 0.45],
        [0.05, 0.05, 0.90],
        [0.50, 0.40, 0.10],
        [0.15, 0.60, 0.25],
        [0.98, 0.01, 0.01],
        [0.20, 0.35, 0.45],
    ]
)
LABELS = np.array([0, 1, 0, 2, 1, 1, 0, 1])

EDGE_SET = {
    "expected_calibration_error": 0.2,
    "expected_calibration_error_l2": 0.244842636538,
    "maximum_calibration_error": 0.5,
    "adaptive_calibration_error": 0.233333333333,
    "adaptive_calibration_error_l2": 0.268774223715,
    "label_binned_calibration_error": 0.250831949055,
    "label_binned_calibration_error_l1": 0.2,
    "sweep_calibration_error": 0.164200504127,
    "ks_calibration_error": 0.104166666667,
    "kernel_calibration_error": 0.0928953021348,
    "overconfidence_error": 0.0958333333333,
    "underconfidence_error": 0.104166666667,
    "weighted_overconfidence_error": 0.0905208333333,
    "area_under_risk_coverage": 0.393401274651,
    "excess_area_under_risk_coverage": 0.220006613757,
    "auroc": 0.722222222222,
}
SMALL_SET = {
    "accuracy": 0.625,
    "mean_confidence": 0.67875,
    "confidence_gap": 0.05375,
    "expected_calibration_error": 0.19625,
    "expected_calibration_error_l2": 0.213395173329,
    "maximum_calibration_error": 0.3,
    "adaptive_calibration_error": 0.19625,
    "adaptive_calibration_error_l2": 0.257791097596,
    "classwise_calibration_error": 0.2225,
    "classwise_calibration_error_l2": 0.283259794378,
    "classwise_adaptive_calibration_error": 0.218333333333,
    "marginal_calibration_error": 0.297926864627,
    "thresholded_adaptive_calibration_error": 0.240119047619,
    "debiased_calibration_error": 0.0375,
    "debiased_marginal_calibration_error": 0.23690129215,
    "debiased_calibration_error_l1": 0.137522238125,
    "sweep_calibration_error": 0.342399620327,
    "ks_calibration_error": 0.175,
    "kernel_calibration_error": 0.126275736886,
    "overconfidence_error": 0.125,
    "underconfidence_error": 0.07125,
    "weighted_overconfidence_error": 0.0625,
    "brier_score": 0.30945,
    "negative_log_likelihood": 0.54070854761,
    "area_under_risk_coverage": 0.103422619048,
    "excess_area_under_risk_coverage": 0.0,
    "auroc": 1.0,
}
GENERATED_SET = {
    "accuracy": 0.73,
    "mean_confidence": 0.853575185104,
    "expected_calibration_error": 0.135542462201,
    "expected_calibration_error_l2": 0.163783998304,
    "maximum_calibration_error": 0.350589803972,
    "adaptive_calibration_error": 0.126087389955,
    "adaptive_calibration_error_l2": 0.158383018582,
    "label_binned_calibration_error_l1": 0.135542462201,
    "label_binned_calibration_error": 0.164768257251,
    "classwise_calibration_error": 0.0653037015193,
    "classwise_calibration_error_l2": 0.117262256086,
    "classwise_adaptive_calibration_error": 0.0571952691394,
    "marginal_calibration_error": 0.0999302129712,
    "thresholded_adaptive_calibration_error": 0.124057099754,
    "debiased_calibration_error": 0.142884182233,
    "debiased_marginal_calibration_error": 0.0881791080664,
    "debiased_calibration_error_l1": 0.119564165877,
    "sweep_calibration_error": 0.139160498879,
    "ks_calibration_error": 0.123583109054,
    "kernel_calibration_error": 0.105056247036,
    "overconfidence_error": 0.129558823653,
    "underconfidence_error": 0.00598363854858,
    "weighted_overconfidence_error": 0.108365147077,
    "brier_score": 0.408313126636,
    "negative_log_likelihood": 0.845336749895,
    "area_under_risk_coverage": 0.112458910016,
    "excess_area_under_risk_coverage": 0.071927967036,
    "auroc": 0.779340436327,
}
# Values that independent packages agree on, 15 bins, float64.
REAL_SETS = {
    "wideresnet-16-4-cifar-10": {
        "accuracy": 0.9109,
        "mean_confidence": 0.96461630,
        "expected_calibration_error": 0.05371630,
        "expected_calibration_error_l2": 0.07490146,
        "maximum_calibration_error": 0.26238924,
        "adaptive_calibration_error": 0.05371630,
        "adaptive_calibration_error_l2": 0.09262247,
        "label_binned_calibration_error_l1": 0.05434945,
        "label_binned_calibration_error": 0.07579470,
        "classwise_calibration_error": 0.01242747,
        "classwise_calibration_error_l2": 0.03989348,
        "classwise_adaptive_calibration_error": 0.01068361,
        "marginal_calibration_error": 0.03610964,
        "debiased_calibration_error": 0.09212409,
        "debiased_marginal_calibration_error": 0.03570124,
        "debiased_calibration_error_l1": 0.05367329,
        "ks_calibration_error": 0.05371630,
        "smooth_calibration_error": 0.05371630,
        "kernel_calibration_error": 0.04675175,
        "overconfidence_error": 0.05371630,
        "underconfidence_error": 0.0,
        "weighted_overconfidence_error": 0.04873237,
        "brier_score": 0.14387109,
        "negative_log_likelihood": 0.37816959,
        "area_under_risk_coverage": 0.01271020,
        "auroc": 0.91479253,
    },
    "lenet-5-cifar-100": {
        "accuracy": 0.1246,
        "mean_confidence": 0.13682420,
        "expected_calibration_error": 0.01487847,
        "expected_calibration_error_l2": 0.02173524,
        "maximum_calibration_error": 0.30626957,
        "adaptive_calibration_error": 0.01638942,
        "adaptive_calibration_error_l2": 0.01909643,
        "label_binned_calibration_error_l1": 0.01904951,
        "label_binned_calibration_error": 0.02781157,
        "classwise_calibration_error": 0.00356963,
        "classwise_calibration_error_l2": 0.01177906,
        "classwise_adaptive_calibration_error": 0.00432717,
        "marginal_calibration_error": 0.00872968,
        "debiased_calibration_error": 0.01443949,
        "debiased_marginal_calibration_error": 0.00792397,
        "debiased_calibration_error_l1": 0.01423389,
        "sweep_calibration_error": 0.01637414,
        "ks_calibration_error": 0.01403885,
        "kernel_calibration_error": 0.01186675,
        "overconfidence_error": 0.01355134,
        "underconfidence_error": 0.00132713,
        "weighted_overconfidence_error": 0.00190629,
        "brier_score": 0.95200994,
        "negative_log_likelihood": 3.81306560,
        "area_under_risk_coverage": 0.78291859,
        "auroc": 0.70127520,
    },
    "wideresnet-16-4-cifar-100": {
        "accuracy": 0.7543,
        "mean_confidence": 0.80220757,
        "expected_calibration_error": 0.05806039,
        "expected_calibration_error_l2": 0.06823371,
        "maximum_calibration_error": 0.13359747,
        "adaptive_calibration_error": 0.05681854,
        "adaptive_calibration_error_l2": 0.07092400,
        "label_binned_calibration_error_l1": 0.05920065,
        "label_binned_calibration_error": 0.07048532,
        "classwise_calibration_error": 0.00213675,
        "classwise_calibration_error_l2": 0.01889280,
        "classwise_adaptive_calibration_error": 0.00106202,
        "marginal_calibration_error": 0.00407142,
        "debiased_calibration_error": 0.06960298,
        "debiased_marginal_calibration_error": 0.00317981,
        "debiased_calibration_error_l1": 0.05634236,
        "sweep_calibration_error": 0.06982106,
        "ks_calibration_error": 0.04790763,
        "smooth_calibration_error": 0.05628065,
        "kernel_calibration_error": 0.04256628,
        "overconfidence_error": 0.05298398,
        "underconfidence_error": 0.00507641,
        "weighted_overconfidence_error": 0.04422966,
        "brier_score": 0.35008731,
        "negative_log_likelihood": 0.95644921,
        "area_under_risk_coverage": 0.07222767,
        "auroc": 0.86201888,
    },
}
# Equal-mass L1, L2 by the rules of others, on the edge set and five bins.
EDGE_RULES = {
    "group": (0.233333333333, 0.268774223715),
    "split": (0.2, 0.258333333333),
    "floor": (0.266666666667, 0.289755644179),
    "midpoint": (0.2, 0.244842636538),
    "quantile": (0.208333333333, 0.265818965129),
    "lower_edge": (0.208333333333, 0.300115718423),
    "interpolated": (0.233333333333, 0.272654135816),
}


def hash_uniform(count, salt):
    """Reproducible uniforms in (0, 1): a 32-bit integer hash."""
    mask = np.uint64(0xFFFFFFFF)
    x = np.arange(1, count + 1, dtype=np.uint64)
    x = x + np.uint64(salt) * np.uint64(1000003)
    for factor, shift in ((2654435761, 16), (2246822519, 13), (3266489917, 16)):
        x = (x * np.uint64(factor)) & mask
        x ^= x >> np.uint64(shift)
    return (x.astype(np.float64) + 0.5) / 4294967296.0


def generated_set(n=500, num_classes=5, temperature=2.0):
    """Logits, and labels from the softmax of cooler logits with a bias."""
    shape = (n, num_classes)
    u = hash_uniform(n * num_classes, 1).reshape(shape)
    logits = 3.0 * np.log(u / (1.0 - u))
    v = hash_uniform(n * num_classes, 2).reshape(shape)
    bias = 0.3 * (np.arange(num_classes) - (num_classes - 1) / 2.0)
    noise = -np.log(-np.log(v))
    labels = (logits / temperature + bias + noise).argmax(axis=1)
    return labels, logits


def softmax(logits):
    exponential = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponential / exponential.sum(axis=1, keepdims=True)


def random_predictions(n=500, num_classes=4, seed=0):
    """Overconfident float32 probabilities and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)).astype("float32") * 2
    noise = rng.gumbel(size=logits.shape)
    return (logits / 2 + noise).argmax(-1), softmax(logits)


def as_binary(confidence):
    """Events as predictions of two classes, the second one's `confidence`."""
    return np.stack([1 - confidence, confidence], axis=1)
