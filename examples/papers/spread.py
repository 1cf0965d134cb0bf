"""Whether differences of rows of the same seed differ from 0.

Two or three seeds hardly tell how far a method's differences scatter; all
methods of a table together do. So the variance of one method is drawn towards
theirs (Smyth, "Linear models and empirical Bayes methods for assessing
differential expression in microarray experiments", 2004, sections 3 to 6):

    s'^2 = (d0 s0^2 + d s^2) / (d0 + d),    t = mean / sqrt(s'^2 / n)

with d = n - 1 and d0 + d degrees of freedom, where s0 and d0 are those under
which the variances of all methods scatter as they do; more degrees than the
table has in all are not counted. The test takes the differences of methods for
independent; they share the seeds of cross-entropy (`verdicts.ABOUT` says what
that does).
"""

import math

import numpy as np

# The probability up to which a difference is told apart from 0.
LEVEL = 0.05
# Smaller p-values are not shown.
LEAST = 1e-6


class Spread:
    """The variance that the methods of a table have in common.

    Args:
        differences: for each method an array, one difference for each seed.

    Attributes:
        freedom: `d0`, 0 where no method has two seeds, `inf` where all
            variances may be the same one.
        degrees: of freedom, of all methods together.
        variance: `s0^2`, 0 where nothing is known of it.
    """

    def __init__(self, differences):
        found = [np.asarray(each) for each in differences if len(each) > 1]
        variances = np.array([each.var(ddof=1) for each in found])
        known = variances > 0
        degrees = np.array([len(each) - 1 for each in found])[known]
        self.freedom, self.variance = 0.0, 0.0
        self.degrees = int(degrees.sum())
        if known.any():
            self.freedom, self.variance = _prior(variances[known], degrees)

    def p_value(self, differences):
        """Of the moderated t-test; `None` where nothing tells the variance."""
        from scipy import special

        own = len(differences) - 1
        square = np.var(differences, ddof=1) if own else 0.0
        if math.isinf(self.freedom):
            variance = self.variance
        elif self.freedom + own:
            known = self.freedom * self.variance + own * square
            variance = known / (self.freedom + own)
        else:
            return None
        mean = abs(np.mean(differences))
        if not variance:
            return 1.0 if mean == 0 else 0.0
        t = mean / math.sqrt(variance / len(differences))
        freedom = min(self.freedom + own, max(self.degrees, own))
        return float(2 * special.stdtr(freedom, -t))

    def told_apart(self, differences):
        """Whether the mean differs from 0; one seed alone never tells."""
        p = self.p_value(differences)
        return len(differences) > 1 and p is not None and p < LEVEL

    def cell(self, differences):
        """The p-value as text, a dash where there is none.

        How small it is where it is tiny depends on the tails of a model.
        """
        p = self.p_value(differences)
        if p is None:
            return "-"
        return f"{p:.2g}" if p >= LEAST else f"< {LEAST:.0e}"

    def words(self, differences, below, above):
        """`below` or `above` 0, or that the two cannot be told apart."""
        word = below if np.mean(differences) < 0 else above
        if len(differences) == 1:
            return f"{word}, one seed"
        return word if self.told_apart(differences) else "not told apart"


def _prior(variances, degrees):
    """`d0` and `s0^2` from the moments of the logarithms of variances."""
    from scipy import special

    half = degrees / 2
    logs = np.log(variances) - special.digamma(half) + np.log(half)
    center, excess = logs.mean(), -special.polygamma(1, half).mean()
    if len(logs) > 1:
        excess += logs.var(ddof=1)
    if excess <= 0:
        return math.inf, float(np.exp(center))
    d0 = 2 * _inverse_trigamma(excess)
    shift = special.digamma(d0 / 2) - np.log(d0 / 2)
    return float(d0), float(np.exp(center + shift))


def _inverse_trigamma(value):
    """The number whose trigamma function is `value`, above 0."""
    from scipy import optimize
    from scipy import special

    def gap(log):
        return float(special.polygamma(1, np.exp(log))) - value

    return math.exp(optimize.brentq(gap, -15.0, 15.0))
