"""The posterior of a temperature, and the weight of a uniform part.

    q = (1 - c) mean_T softmax(z / T) + c / num_classes

The mean is over the posterior of the temperature alone, with the prior `log T ~
N(0, 1)`. Then `c` is its posterior mean, given this mean: half of its prior is
on 0, half is Beta(1, 49). Both together would have another posterior, which is
not used: in few samples, a uniform part for the wrong predictions and a
temperature near 0 for the others can look likely, and new wrong predictions are
then certain.
"""

import numpy as np

from keras_calib.solvers.blocks import TINY64
from keras_calib.solvers.dispersion import design_effect
from keras_calib.solvers.dispersion import squares_of
from keras_calib.solvers.temperature import HIGH
from keras_calib.solvers.temperature import LOW
from keras_calib.solvers.temperature import SUBSAMPLE
from keras_calib.solvers.temperature import Likelihood
from keras_calib.solvers.temperature import log_beta_of_score
from keras_calib.solvers.temperature import unseen

# Standard deviation of the prior of `log T`.
WIDTH = 1.0
# Temperatures that stand for the posterior.
NODES = 5
# Points of the first grid of `log T`, and of the others.
FIRST, LATER = 33, 17
# Standard deviations around the likeliest temperature of a first grid that
# knows it: a step is then less than half of one.
REACH = 7
# The next grid leaves out points with a smaller part of the posterior.
NEGLIGIBLE = 1e-6
# A grid with more than this part at one end does not reach far enough.
CUT_OFF = 1e-4
# A finer grid would only show rounding.
LEAST_STEP = 1e-6
# A posterior narrower than this changes a mean NLL by less than 0.0001 nats.
NARROW = 0.05
# Prior probability of `c = 0`, and the second parameter of the beta prior.
PLAIN, CAUTION = 0.5, 49
# Cells of `c`, narrow near 0, where the prior is.
EDGES = np.array(
    [0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
)
CENTERS = np.append(0.0, (EDGES[1:] + EDGES[:-1]) / 2)
LOG_PRIOR = np.log(
    np.append(PLAIN, TINY64 - (1 - PLAIN) * np.diff((1 - EDGES) ** CAUTION))
)


def temperature_nodes(logits, labels, weights, ends=(LOW, HIGH)):
    """Temperatures whose mean stands for the posterior.

    The posterior is computed on a grid, which is narrowed until its step is at
    most half a standard deviation. Gauss quadrature then takes `NODES` points:
    the mean of a polynomial of `log T` up to degree nine stays as it is.

    Args:
        logits: float32 or float64, `(n, num_classes)`; finite or minus
            infinity.
        labels: int class ids, `(n,)`.
        weights: `(n,)`, with the number of samples as their sum.
        ends: of the first grid of `u = -log T`, which is extended if they cut
            something off.

    Returns:
        log_temperatures: `(NODES,)`.
        shares: their weights, `(NODES,)`, with the sum 1.
        width: standard deviation of `log T`.
    """
    likelihood = Likelihood(logits, labels, weights, 0.0)
    return _nodes_of(likelihood, labels, weights, ends)


def _nodes_of(likelihood, labels, weights, ends):
    """See `temperature_nodes`."""
    grid = np.linspace(*np.clip(ends, LOW, HIGH), FIRST)
    step = likelihood.logits.size // SUBSAMPLE
    if step > 1:
        data = likelihood.logits, labels, weights
        part = Likelihood(*(each[::step] for each in data), 0.0)
        grid, _ = _narrowed(part, grid)
    grid, posterior = _narrowed(likelihood, grid)
    mean = posterior @ grid
    width = float(np.sqrt(posterior @ (grid - mean) ** 2))
    nodes, shares = gauss_nodes(grid, posterior, NODES)
    return -nodes, shares, width


def effective_weights(logits, labels, weights, temperature, group=None):
    """Weights with the effective number of samples as their sum.

    At the likeliest temperature, the residuals `E_q z - z_y` of a group are
    added up before they are squared: where its samples are wrong together, it
    tells less of the temperature than its samples do. So do unequal weights.

    Args:
        logits: see `temperature_nodes`.
        labels: int class ids, `(n,)`.
        weights: `(n,)`, with the number of samples as their sum.
        temperature: the likeliest.
        group: `None`, or numbers from 0, `(n,)`.

    Returns:
        weights: `(n,)`.
        dispersion: float, by which they were divided; at least 1.
    """
    if group is None and (weights == weights[0]).all():
        return weights, 1.0
    likelihood = Likelihood(logits, labels, weights, 0.0)
    residuals = np.empty(len(labels))
    for rows in likelihood.blocks:
        _, mean, _ = likelihood.moments(-np.log(temperature), rows)
        residuals[rows] = mean - likelihood.label_gap[rows]
    dispersion = design_effect(squares_of(residuals, weights, group))
    return weights / dispersion, dispersion


def cautious_scale(logits, labels, weights, temperature):
    """The factor from the likeliest scores `z / T` to those of the average.

    With b = 1 / T, `softmax(b z)` is an exponential family whose mean is
    `G(b) = mean_i E_q z_i`. At the likeliest `b` it is that of the labels. Here
    it is that of `expected_score`, which makes `softmax(b z)` the nearest, by
    cross-entropy, to what is expected of other samples.

    Args:
        logits: see `temperature_nodes`.
        labels: int class ids, `(n,)`.
        weights: `(n,)`, with the number of samples as their sum.
        temperature: the likeliest.

    Returns:
        float, below 1 as a rule; 1 where the posterior is narrow.
    """
    likelihood = Likelihood(logits, labels, weights, 0.0)
    mean = expected_score(likelihood, labels, weights, temperature)
    if mean is None:
        return 1.0
    u = log_beta_of_score(likelihood, mean, -np.log(temperature))
    # A uniform part can lower the score below that of all temperatures.
    return 1.0 if u in (LOW, HIGH) else float(temperature * np.exp(u))


def expected_gain(logits, labels, weights, temperature, factors=(1.0,)):
    """How far a temperature is expected to lower the NLL of other samples.

    Of these, the inputs are as they are here, and the labels are drawn from the
    mean of `expected_score`: the NLL, linear in the labels, needs no more.

    Args:
        logits: see `temperature_nodes`.
        labels: int class ids, `(n,)`.
        weights: `(n,)`, with the number of samples as their sum.
        temperature: the likeliest.
        factors: of the scores `z / T`.

    Returns:
        A float for each factor, in nats; negative if the logits should rather
        stay as they are. `None` where the posterior is narrow: then the labels
        here decide.
    """
    likelihood = Likelihood(logits, labels, weights, 0.0)
    mean = expected_score(likelihood, labels, weights, temperature)
    if mean is None:
        return None

    def nll(b):
        return likelihood.derivatives(np.log(b))[0] - b * mean

    before = nll(1.0)
    return [float(before - nll(factor / temperature)) for factor in factors]


def expected_score(likelihood, labels, weights, temperature):
    """What to expect of `mean_i E z_i`, minus that of the labels.

    The mean over the posterior of the temperature; and a part `c` is the mean
    over the classes, for labels as no sample has them. `c` is that of the
    module, and at most `unseen(n)`: what the samples do have, the likeliest
    temperature knows.

    Args:
        likelihood: `Likelihood` without smoothing.
        labels: int class ids, `(n,)`.
        weights: `(n,)`, with the number of samples as their sum.
        temperature: the likeliest.

    Returns:
        float; `None` where the posterior is narrow.
    """
    likeliest = -np.log(temperature)
    *_, curvature = likelihood.derivatives(likeliest)
    precision = likelihood.count * curvature
    if precision > NARROW**-2:
        return None
    reach = REACH / np.sqrt(max(precision, 0.0) + WIDTH**-2)
    ends = likeliest - reach, likeliest + reach
    nodes, shares, _ = _nodes_of(likelihood, labels, weights, ends)
    nodes, shares = nodes[shares > 0], shares[shares > 0]
    scores, log_q = _of_temperatures(likelihood, labels, nodes, shares)
    mean = shares @ scores
    if not likelihood.ruled_out:
        c = uniform_weight(log_q, likelihood.logits.shape[1], weights)
        c = min(c, unseen(likelihood.count))
        mean += c * (likelihood.excess - mean)
    return mean


def _of_temperatures(likelihood, labels, log_temperatures, shares):
    """What several temperatures predict, in one pass.

    Returns:
        scores: `mean_i E_q z_i` of each temperature, minus that of the labels.
        log_q: log-probabilities of the labels, of the mean over temperatures.
    """
    betas = np.exp(-log_temperatures)[:, None, None]
    scores, likely = np.zeros(len(betas)), np.empty(len(labels))
    for rows in likelihood.blocks:
        d = likelihood.gaps(rows)
        e = d * betas.astype(d.dtype)
        np.exp(e, out=e)
        total = e.sum(axis=2)
        chosen = e[:, np.arange(len(d)), labels[rows]]
        likely[rows] = shares @ (chosen / total)
        e *= d
        means = e.sum(axis=2) / total - likelihood.label_gap[rows]
        scores += means @ likelihood.weights[rows]
    return scores, np.log(np.maximum(likely, TINY64))


def uniform_weight(log_q, num_classes, weights):
    """The posterior mean of `c` in `(1 - c) q + c / num_classes`.

    Args:
        log_q: log-probabilities of the labels, `(n,)`.
        num_classes: int, or of each row, `(n,)`.
        weights: `(n,)`, with the number of samples as their sum.

    Returns:
        float in `[0, 1]`.
    """
    q, floor = np.exp(log_q), 1 / num_classes
    mixed = (np.log((1 - c) * q + c * floor) for c in CENTERS[1:])
    log_posterior = [weights @ log_q, *(weights @ each for each in mixed)]
    log_posterior = log_posterior + LOG_PRIOR
    posterior = np.exp(log_posterior - log_posterior.max())
    return float(posterior @ CENTERS / posterior.sum())


def gauss_nodes(points, weights, count):
    """Gauss quadrature for a discrete distribution, by Lanczos.

    Args:
        points: `(n,)`, different from each other.
        weights: `(n,)`, with the sum 1.
        count: number of nodes.

    Returns:
        nodes: `(count,)`.
        weights: `(count,)`, with the sum 1; 0 for nodes that are not needed.

    Reference:
        Golub and Welsch, "Calculation of Gauss Quadrature Rules", Mathematics
        of Computation 23, 1969.
    """
    # Centered and scaled, so that rounding depends on neither.
    center = weights @ points
    unit = np.sqrt(weights @ (points - center) ** 2)
    x = (points - center) / max(unit, TINY64)
    basis, diagonal, beside = np.sqrt(weights)[None], [], []
    while True:
        image = x * basis[-1]
        diagonal.append(basis[-1] @ image)
        for _ in range(2):  # once leaves too much rounding
            image = image - (basis @ image) @ basis
        norm = np.linalg.norm(image)
        if len(diagonal) == count or norm < 1e-9:
            break
        beside.append(norm)
        basis = np.append(basis, [image / norm], axis=0)
    jacobi = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    nodes, vectors = np.linalg.eigh(jacobi)
    missing = count - len(nodes)
    nodes = np.pad(center + unit * nodes, (0, missing), "edge")
    return nodes, np.pad(vectors[0] ** 2, (0, missing))


def _narrowed(likelihood, grid):
    """The last grid of `u = -log T`, and the posterior of its points."""
    while True:
        nll = likelihood.values(grid)
        log_posterior = -likelihood.count * nll - 0.5 * (grid / WIDTH) ** 2
        posterior = np.exp(log_posterior - log_posterior.max())
        posterior /= posterior.sum()
        span = grid[-1] - grid[0]
        # Rows that a first grid was not chosen for may lie outside it.
        if posterior[0] > CUT_OFF and grid[0] > LOW:
            grid = np.linspace(max(grid[0] - span, LOW), grid[-1], FIRST)
            continue
        if posterior[-1] > CUT_OFF and grid[-1] < HIGH:
            grid = np.linspace(grid[0], min(grid[-1] + span, HIGH), FIRST)
            continue
        step = grid[1] - grid[0]
        width = np.sqrt(posterior @ (grid - posterior @ grid) ** 2)
        if step <= max(width / 2, LEAST_STEP):
            return grid, posterior
        inside = grid[posterior > NEGLIGIBLE]
        low = max(inside[0] - step, LOW)
        high = min(inside[-1] + step, HIGH)
        shorter = high - low < 0.9 * (grid[-1] - grid[0])
        count = LATER if shorter else 2 * len(grid) - 1
        grid = np.linspace(low, high, count)
