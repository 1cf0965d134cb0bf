"""What the library is compared with: the formula sheets in plain NumPy.

Nothing here knows the library. A case is read into the rows that count, with
weights, in float64; then each loss, metric and map is its formula, written for
the reader, not for speed: sums over pairs, bins one after another.
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a case that count: valid, labeled, of positive weight.

    Attributes:
        z: logits, or log-probabilities where probabilities came, `(n, K)`.
        p: probabilities, `(n, K)`.
        y: class ids, `(n,)`.
        t: labels as distributions, `(n, K)`.
        w: weights above 0, `(n,)`.
        place: where each row stands among all rows of the case, `(n,)`.
        counted: how many rows are neither masked nor void; a weight of 0 does
            not change it.
        total: how many rows the case has.
        shape: the shape of one value per row.
        counts: which of all rows are neither masked nor void, `(total,)`.
    """

    z: np.ndarray
    p: np.ndarray
    y: np.ndarray
    t: np.ndarray
    w: np.ndarray
    place: np.ndarray
    counted: int
    total: int
    shape: tuple
    counts: np.ndarray

    def __len__(self):
        return len(self.y)

    @property
    def num_classes(self):
        return self.z.shape[1]

    @property
    def log_p(self):
        return log_softmax(self.z)

    @property
    def top(self):
        return self.p.argmax(axis=1)

    @property
    def c(self):
        """The confidence."""
        return self.p.max(axis=1)

    @property
    def a(self):
        """1 where the prediction is the label."""
        return (self.top == self.y).astype("float64")

    def normalized(self):
        """With probabilities that sum to one, as a softmax of `z` has them.

        Losses are functions of logits; half precision leaves a sum of one only
        nearly, which metrics take as it comes.
        """
        return dataclasses.replace(self, p=np.exp(self.log_p))

    def of(self, values, index):
        return values[np.arange(len(self)), index]

    def mean(self, values):
        """Weighted mean over the rows; 0 without any."""
        if not len(self):
            return np.zeros(np.shape(values)[1:])
        return np.average(values, axis=0, weights=self.w)


def log_softmax(z):
    d = z - z.max(axis=1, keepdims=True) if len(z) else z
    return d - np.log(np.exp(d).sum(axis=1, keepdims=True))


def read(
    labels,
    predictions,
    weight=None,
    mask=None,
    *,
    axis=-1,
    ignore_class=None,
    from_logits=True,
):
    """A case as `Rows`: flatten, find what counts, forget the rest."""
    scores = np.moveaxis(np.asarray(predictions, "float64"), axis, -1)
    lead, num_classes = scores.shape[:-1], scores.shape[-1]
    labels = np.asarray(labels)
    if labels.shape == lead or labels.shape == (*lead, 1):
        ids = labels.reshape(-1).astype("float64")
        targets = None
    else:
        targets = np.moveaxis(labels.astype("float64"), axis, -1)
        targets = targets.reshape(-1, num_classes)
        ids = targets.argmax(axis=1).astype("float64")
    scores = scores.reshape(-1, num_classes)
    total = len(scores)

    counts = np.ones(total, bool)
    if mask is not None:
        counts &= np.asarray(mask).reshape(-1)
    if ignore_class is not None:
        counts &= ids != ignore_class
    w = np.ones(lead)
    if weight is not None:
        weight = np.asarray(weight, "float64")
        if weight.ndim > len(lead):
            weight = weight[..., 0]
        # From the left: a weight of an image is that of all its pixels.
        weight = weight.reshape(weight.shape + (1,) * (len(lead) - weight.ndim))
        w = np.broadcast_to(weight, lead)
    w = w.reshape(-1)
    place = np.flatnonzero(counts & (w > 0))
    scores, y, w = scores[place], ids[place].astype(int), w[place]

    if num_classes == 1:
        if from_logits:
            z = np.concatenate([np.zeros_like(scores), scores], axis=1)
            p = np.exp(log_softmax(z))
        else:
            p = np.concatenate([1 - scores, scores], axis=1)
            z = np.log(p)
        num_classes = 2
    elif from_logits:
        z, p = scores, np.exp(log_softmax(scores))
    else:
        z, p = np.log(scores), scores
    t = np.eye(num_classes)[y] if targets is None else targets[place]
    return Rows(z, p, y, t, w, place, counts.sum(), total, lead, counts)


# Losses, one value per row.


def cross_entropy(r):
    return -(r.t * r.log_p).sum(axis=1)


def label_smoothing(r, smoothing=0.05):
    target = (1 - smoothing) * r.t + smoothing / r.num_classes
    return -(target * r.log_p).sum(axis=1)


def focal(r, gamma=3.0):
    """`gamma`: a number, or a function of the probability."""
    p = np.exp(r.log_p)
    power = gamma(p) if callable(gamma) else gamma
    return -(r.t * (1 - p) ** power * r.log_p).sum(axis=1)


def sample_dependent_focal(r):
    return focal(r, lambda p: np.where(p < 0.2, 5.0, 3.0))


def inverse_focal(r, gamma=2.0):
    return -(r.t * (1 + np.exp(r.log_p)) ** gamma * r.log_p).sum(axis=1)


def ada_focal(r, edges, gammas):
    """`-(1 - sign(gamma) p)^|gamma| log p`, gamma of the bin of `p`."""
    p = np.exp(r.log_p)
    gamma = np.asarray(gammas)[np.searchsorted(edges, p, side="left")]
    return -(r.t * (1 - np.sign(gamma) * p) ** np.abs(gamma) * r.log_p).sum(
        axis=1
    )


def dual_focal(r, gamma=5.0):
    values = np.zeros(len(r))
    p = np.exp(r.log_p)
    for i, y in enumerate(r.y):
        below = [q for q in p[i] if q < p[i, y]]
        gap = 1 - p[i, y] + max(below, default=0.0)
        values[i] = -(gap**gamma) * r.log_p[i, y]
    return values


def brier(r):
    return ((r.p - r.t) ** 2).sum(axis=1)


def squared_logits(r, label_weight=1.0, label_value=1.0):
    own = np.eye(r.num_classes)[r.y]
    weights = 1 + (label_weight - 1) * own
    return (weights * (r.z - label_value * own) ** 2).mean(axis=1)


def negative_entropy(r):
    return (r.p * r.log_p).sum(axis=1)


def margin_penalty(r, margin):
    gap = r.z.max(axis=1, keepdims=True) - r.z - margin
    return np.maximum(gap, 0).mean(axis=1)


def acls(r, margin, reference, positive=0.1, negative=0.01):
    top, z = r.top, r.z
    largest = r.of(z, top)
    low = z.min(axis=1) if reference == "min" else 0.0
    pull = np.maximum(largest - low - margin, 0) ** 2
    push = np.maximum(largest[:, None] - z - margin, 0) ** 2
    push[np.arange(len(r)), top] = 0
    return positive * pull + negative * push.sum(axis=1) / (r.num_classes - 1)


def cpc(r, one_vs_one=0.1, exclusion=1.0):
    k = r.num_classes
    values = np.zeros(len(r))
    for i, y in enumerate(r.y):
        z = r.z[i]
        others = [j for j in range(k) if j != y]
        ones = sum(np.logaddexp(0, z[j] - z[y]) for j in others) / (k - 1)
        pairs = sum(
            np.logaddexp(0, z[m] - z[j]) / 2
            for j in others
            for m in others
            if j != m
        )
        values[i] = one_vs_one * ones
        if k > 2:
            values[i] += exclusion * pairs / ((k - 1) * (k - 2))
    return values


# Losses, one value for the batch.


def mdca(r):
    return np.abs(r.mean(r.p - r.t)).mean()


def dca(r):
    return np.abs(r.mean(r.c - r.a))


def mmce(r, weighted=False, width=0.4):
    if not len(r):
        return 0.0
    kernel = np.exp(-np.abs(r.c[:, None] - r.c) / width)
    if weighted:
        right, wrong = (r.w * r.a).sum(), (r.w * (1 - r.a)).sum()
        if right == 0 or wrong == 0:
            return 0.0
        s = r.w * np.where(r.a > 0, (1 - r.c) / right, -r.c / wrong)
    else:
        s = r.w * (r.a - r.c) / r.w.sum()
    return math.sqrt(max(s @ kernel @ s, 0) + 1e-10)


def _relative(r):
    """Weights brought to the sum `n` of rows that count."""
    return r.w / r.w.mean() if len(r) else r.w


def _accuracy_versus_uncertainty(ac, au, ic, iu):
    return math.log(1 + (au + ic) / max(ac + iu, 1e-5))


def avuc(r, threshold=1.0):
    w, h = _relative(r), -negative_entropy(r)
    right, certain = r.a > 0, h <= threshold
    t = np.tanh(h)
    return _accuracy_versus_uncertainty(
        (w * r.c * (1 - t))[right & certain].sum(),
        (w * r.c * t)[right & ~certain].sum(),
        (w * (1 - r.c) * (1 - t))[~right & certain].sum(),
        (w * (1 - r.c) * t)[~right & ~certain].sum(),
    )


def soft_avuc(r, kappa=0.3, temperature=0.1):
    w, h = _relative(r), -negative_entropy(r)
    share = np.clip(h / math.log(r.num_classes), 1e-6, 1 - 1e-6)
    logit = np.log(share / (1 - share)) - math.log(kappa / (1 - kappa))
    unsure = 1 / (1 + np.exp(-logit / temperature))
    right, t = r.a > 0, np.tanh(h)
    return _accuracy_versus_uncertainty(
        (w * (1 - unsure) * (1 - t))[right].sum(),
        (w * unsure * t)[right].sum(),
        (w * (1 - unsure) * (1 - t))[~right].sum(),
        (w * unsure * t)[~right].sum(),
    )


def soft_binned_ece(r, form, num_bins=15, temperature=1e-3):
    """With norm 2 and its root."""
    if not len(r):
        return 0.0
    centers = (np.arange(num_bins) + 0.5) / num_bins
    e = -((r.c[:, None] - centers) ** 2) / temperature
    u = np.exp(log_softmax(e))
    v = r.w[:, None] * u
    size = np.maximum(v.sum(axis=0), 1e-300)
    accuracy = (v * r.a[:, None]).sum(axis=0) / size
    if form == "bin":
        confidence = (v * r.c[:, None]).sum(axis=0) / size
        square = (size * (accuracy - confidence) ** 2).sum()
    else:
        square = (v * (accuracy - r.c[:, None]) ** 2).sum()
    return math.sqrt(square / r.w.sum() + 1e-10)


def crl(r, correctness):
    """With the confidence of the softmax; `correctness` of the same rows."""
    following = np.roll(np.arange(len(r)), -1)
    gap = correctness - correctness[following]
    distance = r.c - r.c[following]
    pairs = np.maximum(np.abs(gap) - np.sign(gap) * distance, 0)
    pairs = pairs * (gap != 0)
    weight = r.w * r.w[following]
    return (pairs * weight).sum() / weight.sum()


def reduced(r, per_row, batch=0.0, reduction="sum_over_batch_size"):
    """Keras' reduction of the per-row part, and the batch's statistic.

    A weight scales the value, a masked or void row leaves the number of rows.
    The statistic is that of the batch: a mean has it once; where each row has
    a value, so has each row that counts; and a sum is the sum of those.
    """
    if reduction == "none":
        values = np.zeros(r.total)
        values[r.place] = r.w * per_row
        values[r.counts] += batch
        return values.reshape(r.shape)
    total = (r.w * per_row).sum()
    if reduction == "sum":
        return total + batch * r.counted
    if reduction == "mean_with_sample_weight":
        return (total / r.w.sum() if len(r) else 0.0) + batch
    return total / max(r.counted, 1) + batch


# Errors of confidences `c` and events `a` with weights `w`.


def width_bins(c, num_bins=15):
    """Index of the bin `((j - 1) / B, j / B]`; 0 is in the first."""
    edges = np.arange(1, num_bins) / num_bins
    return np.searchsorted(edges, np.round(c, 9), side="left")


def mass_bins(c, w, num_bins=15):
    """Bins end at the value of rank `ceil(j n / B)`; ties stay together."""
    if not len(c):
        return np.zeros(0, int)
    c = np.round(c, 5)
    order = np.argsort(c, kind="stable")
    rank = np.cumsum(w[order])
    edges = []
    for j in range(1, num_bins):
        share = j / num_bins * rank[-1]
        first = np.flatnonzero(rank >= share - 1e-9 * rank[-1])[0]
        edges.append(c[order][first])
    return np.searchsorted(edges, c, side="left")


def binned(c, a, w, index, norm=1):
    """`(sum_m n_m / n |C_m - A_m|^p)^(1/p)`; the largest gap for `inf`."""
    if not len(c):
        return 0.0
    gaps, sizes = [], []
    for m in np.unique(index):
        inside = index == m
        sizes.append(w[inside].sum())
        gaps.append(abs(np.average((c - a)[inside], weights=w[inside])))
    gaps, sizes = np.array(gaps), np.array(sizes)
    if norm == np.inf:
        return gaps.max()
    return (np.average(gaps**norm, weights=sizes)) ** (1 / norm)


def signed_parts(c, a, w, num_bins=15, confidence_weighted=False):
    """The parts of ECE where confidence is too high, and too low."""
    if not len(c):
        return 0.0, 0.0
    over = under = 0.0
    index = width_bins(c, num_bins)
    for m in np.unique(index):
        inside = index == m
        share = w[inside].sum() / w.sum()
        confidence = np.average(c[inside], weights=w[inside])
        gap = confidence - np.average(a[inside], weights=w[inside])
        if confidence_weighted:
            share *= confidence
        over += share * max(gap, 0)
        under += share * max(-gap, 0)
    return over, under


def label_binned(c, a, w, index, norm):
    if not len(c):
        return 0.0
    accuracy = np.array(
        [np.average(a[index == m], weights=w[index == m]) for m in index]
    )
    return np.average(np.abs(accuracy - c) ** norm, weights=w) ** (1 / norm)


def debiased(c, a, w, index, norm=2):
    """With `(sum w)^2 / sum w^2` samples a bin; norm 2 before its root."""
    if not len(c):
        return 0.0
    value = 0.0
    for m in np.unique(index):
        inside = index == m
        size = w[inside].sum()
        samples = size**2 / (w[inside] ** 2).sum()
        gap = np.average((c - a)[inside], weights=w[inside])
        accuracy = np.average(a[inside], weights=w[inside])
        variance = max(accuracy * (1 - accuracy), 0.0)
        if norm == 2:
            if np.count_nonzero(w[inside]) > 1:
                term = gap**2 - variance / (samples - 1)
            else:
                term = 0.0
        else:
            sd = math.sqrt(variance / samples)
            folded = abs(gap)
            if sd > 0:
                t = gap / sd
                folded = 2 * sd * math.exp(-(t**2) / 2) / math.sqrt(
                    2 * math.pi
                ) + gap * math.erf(t / math.sqrt(2))
            term = 2 * abs(gap) - folded
        value += size / w.sum() * term
    return value


def ks(c, a, w):
    """`max_t |1/n sum_(c_i <= t) (c_i - a_i)|` at the ends of ties."""
    if not len(c):
        return 0.0
    levels = np.round(c, 5)
    sums = [(w * (c - a))[levels <= level].sum() for level in levels]
    return max(map(abs, sums)) / w.sum()


def sweep(c, a, w, norm=2, most=64):
    """Equal mass, as many bins as keep the accuracy from falling."""
    if not len(c):
        return 0.0
    samples = w.sum() ** 2 / (w**2).sum()
    found = binned(c, a, w, np.zeros(len(c), int), norm)
    for number in range(2, most + 1):
        if number > samples - 1 + 1e-9:
            break
        index = mass_bins(c, w, number)
        accuracy = [
            np.average(a[index == m], weights=w[index == m])
            for m in np.unique(index)
        ]
        # What rounding alone makes is no fall.
        if (np.diff(accuracy) < -1e-9).any():
            break
        found = binned(c, a, w, index, norm)
    return found


def smooth(c, a, w, bandwidth=None):
    """Smooth ECE, by the folded sum itself on 1501 points."""
    if not len(c):
        return 0.0
    t = np.linspace(0, 1, 1501)
    r = w * (c - a) / w.sum()
    # A kernel reflected at 0 and 1 is the sum of its images.
    images = [
        (t[:, None] - sign * c - 2 * shift) ** 2 / 2
        for shift in range(-3, 4)
        for sign in (1, -1)
    ]

    def error(s):
        density = sum(np.exp(-image / s**2) for image in images) @ r
        density /= s * math.sqrt(2 * math.pi)
        return np.trapezoid(np.abs(density), t)

    if bandwidth is not None:
        return error(bandwidth)
    low, high = 2e-3, 1.0
    if error(low) <= low:
        return error(low)
    for _ in range(18):
        middle = (low + high) / 2
        if error(middle) > middle:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def kernel_error(c, a, w, width=0.4):
    if not len(c):
        return 0.0
    s = w * (c - a) / w.sum()
    kernel = np.exp(-np.abs(c[:, None] - c) / width)
    return math.sqrt(max(s @ kernel @ s, 0))


def auroc(c, a, w):
    hits, misses = a > 0, a == 0
    if not hits.any() or not misses.any():
        return 0.5
    levels = np.round(c, 5)
    won = 0.0
    for i in np.flatnonzero(hits):
        above = levels[i] > levels[misses]
        equal = levels[i] == levels[misses]
        won += w[i] * (w[misses] * (above + equal / 2)).sum()
    return won / (w[hits].sum() * w[misses].sum())


def selective_risk(c, a):
    """AURC and its excess over the best order, of equal weights.

    Of a group of ties each member has the group's mean error.
    """
    if not len(c):
        return 0.0, 0.0
    levels, errors = np.round(c, 5), 1 - a
    shared = np.array([errors[levels == level].mean() for level in levels])
    order = np.argsort(-levels, kind="stable")
    k = np.arange(1, len(c) + 1)
    area = (np.cumsum(shared[order]) / k).mean()
    best = (np.cumsum(np.sort(errors)) / k).mean()
    return area, area - best


def per_class(r, error):
    """`error(c, a, w)` of each class's probability, `(K,)`."""
    return np.array(
        [
            error(r.p[:, k], (r.y == k).astype("float64"), r.w)
            for k in range(r.num_classes)
        ]
    )


def brier_parts(r, num_bins=15):
    """Calibration, resolution, uncertainty, within bins: sums over classes."""
    found = np.zeros(4)
    for k in range(r.num_classes):
        c, t, w = r.p[:, k], r.t[:, k], r.w / r.w.sum()
        index = width_bins(c, num_bins)
        base = (w * t).sum()
        found[2] += (w * t**2).sum() - base**2
        for m in np.unique(index):
            i = index == m
            size = w[i].sum()
            mean_c = np.average(c[i], weights=w[i])
            mean_t = np.average(t[i], weights=w[i])
            found[0] += size * (mean_c - mean_t) ** 2
            found[1] += size * (mean_t - base) ** 2
            found[3] += (w[i] * (c[i] - mean_c) ** 2).sum()
            found[3] -= 2 * (w[i] * (c[i] - mean_c) * (t[i] - mean_t)).sum()
    return found


# Post-hoc.


def temperature(r, lowest=0.01, highest=100.0):
    """The temperature of least NLL, by bisection of the convex slope."""

    def slope(b):
        q = np.exp(log_softmax(b * r.z))
        return r.mean((q * r.z).sum(axis=1) - (r.t * r.z).sum(axis=1))

    low, high = math.log(1 / highest), math.log(1 / lowest)
    for _ in range(100):
        middle = (low + high) / 2
        if slope(math.exp(middle)) > 0:
            high = middle
        else:
            low = middle
    return math.exp(-(low + high) / 2)


def nll(r, z=None):
    """Mean negative log-likelihood, of these logits or the rows' own."""
    return r.mean(-(r.t * log_softmax(r.z if z is None else z)).sum(axis=1))


def mass_edges_adafocal(c, num_bins):
    """Edges of AdaFocal's code: sorted confidences, interpolated."""
    n = len(c)
    return np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), np.sort(c))
