"""Newton steps along the fits of `solvers.dense_evidence`.

A path has a fit for each width of the prior. It is given the derivatives of the
summed loss at its point, and says where it needs them next.
"""

import math
from typing import NamedTuple

import numpy as np

# A fit ends where the summed loss is expected to fall by less than this.
DECREASE = 1e-6
MAX_STEPS = 50
# Where logits are constant, no data tell the common scale, and its curvature is
# only rounding. One below this, for each sample, becomes a penalty of as much,
# which leaves the scale at 0.
LEAST_CURVATURE = 1e-9
# A fit whose log evidence can only be lower than the highest by more than this
# is left as the nearest fit predicts it: it has 2e-9 of the average.
MARGIN = 20.0
# The same for the mean widths, which are of fits around 0 alone: 3e-4 of these.
MARGIN_OF_WIDTHS = 8.0


class _Here(NamedTuple):
    """The summed loss at a point, with derivatives where a path is free.

    Attributes:
        value: of the loss.
        gradient: of it.
        hessian: of it; on its diagonal is the penalty of the last `_Step`.
        diagonal: of the Hessian, as it is stored.
        curvatures: of the loss, the diagonal without a penalty.
    """

    value: float
    gradient: np.ndarray
    hessian: np.ndarray
    diagonal: np.ndarray
    curvatures: np.ndarray


class _Step(NamedTuple):
    """From a point to a fit, by the parabola of the loss at the point.

    Attributes:
        start: the deviations of the point, those that are free.
        objective: there, with the penalty of the fit.
        change: of the deviations.
        decrease: of the objective.
    """

    start: np.ndarray
    objective: float
    change: np.ndarray
    decrease: float


class _Guess(NamedTuple):
    """A fit as another point tells it.

    Attributes:
        step: `_Step` to it.
        log_evidence: of it.
        possible: the highest that can be. For a wider prior the loss falls by
            at most twice what the parabola says, which is the most where it
            falls exponentially with a bias.
        away: number of widths between the point and the fit.
    """

    step: _Step
    log_evidence: float
    possible: float
    away: int

    @property
    def order(self):
        """The nearest guesses are the best, and of these the most likely."""
        return self.away, -self.log_evidence


class Path:
    """The fits of one path, from narrow to wide.

    Args:
        strengths: see `fit_paths`.
        typical: see `fit_paths`, `(num_classes,)`.
        phi: see `fit_paths`.
        least: a curvature in the common scale below which it gets a penalty.
    """

    def __init__(self, strengths, typical, phi, least=0.0):
        scale, bias = strengths[0] > 0
        num_classes = len(typical)
        size = 2 * num_classes + 1
        self.typical = typical if typical.any() else None
        self.size, self.common = size, num_classes if scale else 0
        self.free = slice(
            0 if scale else num_classes, size if bias else num_classes + 1
        )
        self.phi, self.least_curvature = phi, least
        # The deviations that are free, with the bias of a class where `x` is
        # `m`; `common` is the place of `a` among them.
        self.deviations = np.zeros(size)[self.free]
        # Loss and curvature in `a` of temperature scaling, the first point.
        self.plain = None
        # The penalty of each fit and its log determinant, and what was found.
        columns = strengths.T[[0, 1, 1]]
        columns[1] = 0.0  # the common scale has no prior
        groups = [num_classes, 1, num_classes]
        self.ridges = np.repeat(columns, groups, axis=0).T[:, self.free].copy()
        used = np.where(strengths > 0, strengths, 1.0)
        self.log_det_ridges = num_classes * np.log(used).sum(axis=1)
        self.found = [None] * len(strengths)
        # The point where the last fit began, and the Hessian there.
        self.before = None
        # The fits that are still to be found, and the one that is next.
        self.waiting = list(range(len(strengths)))
        self._begin(0)

    def _begin(self, number):
        self.number, self.steps, self.least = number, 0, np.inf

    @property
    def point(self):
        """All deviations, with the bias of a class where `x` is 0."""
        return self._with_biases(self.deviations)

    def _with_biases(self, deviations):
        """`point` of deviations that are free, `(..., size)`."""
        found = np.zeros((*deviations.shape[:-1], self.size))
        found[..., self.free] = deviations
        if self.typical is not None:
            num_classes = len(self.typical)
            slopes = found[..., :num_classes]
            found[..., num_classes + 1 :] -= self.typical * slopes
        return found

    def fits(self):
        """Slopes and biases, log evidence and number of steps of each fit."""
        ends, *rest = zip(*self.found, strict=True)
        points = self._with_biases(np.stack(ends))
        middle = self.size // 2
        v, a, b = np.split(points, [middle, middle + 1], axis=1)
        return list(zip(np.stack([1 + a + v, b], axis=1), *rest, strict=True))

    def _around_typical(self, gradient, hessian):
        """Derivatives in the deviations, from those in `point`."""
        if self.typical is not None:
            slopes = slice(len(self.typical))
            biases = slice(len(self.typical) + 1, None)
            gradient[slopes] -= self.typical * gradient[biases]
            hessian[:, slopes] -= hessian[:, biases] * self.typical
            hessian[slopes] -= self.typical[:, None] * hessian[biases]

    def advance(self, value, gradient, hessian):
        """One step, of the first fit that is not at its optimum.

        Args:
            value: summed loss at the point.
            gradient: of it.
            hessian: of it, where the path is free.
        """
        self._around_typical(gradient, hessian)
        diagonal = np.einsum("ii->i", hessian)
        here = _Here(
            value, gradient[self.free], hessian, diagonal, diagonal.copy()
        )
        if self.plain is None:
            self._begin_with(here)
            if self._starts_elsewhere(here):
                return
        while self.waiting:
            objective = self._objective(self.number, here)
            if not objective <= self.least + 1e-10 * abs(self.least):
                if not self.steps:
                    raise ArithmeticError("The loss has no value here.")
                self._move(self.change / 4)
                return
            step = self._step(self.number, objective, here)
            if step.decrease < -DECREASE:
                raise ArithmeticError("The curvature is only rounding.")
            if not step.decrease <= DECREASE:
                self._go(step if self.steps else self._bent(step, here))
                return
            log_evidence = self._log_evidence(self.number, step, here)
            self._keep(self.number, step, log_evidence)
            if self._starts_elsewhere(here):
                return

    def _begin_with(self, here):
        """Keep what is known of temperature scaling."""
        curvature = here.curvatures[self.common]
        if not curvature > self.least_curvature:
            self.ridges[:, self.common] = self.least_curvature
            curvature = self.least_curvature
        self.plain = here.value, curvature

    def _objective(self, number, here):
        away = self.deviations
        return here.value + 0.5 * float((self.ridges[number] * away) @ away)

    def _step(self, number, objective, here):
        """`_Step` to a fit, whose penalty is on the Hessian afterwards."""
        ridge = self.ridges[number]
        np.add(here.curvatures, ridge, out=here.diagonal)
        slope = here.gradient + ridge * self.deviations
        change = -np.linalg.solve(here.hessian, slope)
        decrease = -0.5 * float(change @ slope)
        return _Step(self.deviations, objective, change, decrease)

    def _bent(self, step, here):
        """The first step `s` of a fit, by a loss that is no parabola.

            s - (H + S)^-1 D (c s - c^2 d / 2)

        Over the `d` from where the last fit began to here, the Hessian `H` has
        changed by `D`. Third derivatives in other directions are left out: `c`
        is how many times `d` the step is. `S` is the penalty.
        """
        before, self.before = self.before, (step.start, here)
        if before is None:
            return step
        d, there = step.start - before[0], before[1]
        image = here.hessian @ d
        size = float(d @ image)
        if not size > 0:
            return step
        c = float(step.change @ image) / size
        along = c * step.change - c**2 / 2 * d
        # What penalties have added to the diagonals is no change of the loss.
        bend = (here.hessian - there.hessian) @ along
        penalties = here.diagonal - here.curvatures
        penalties -= there.diagonal - there.curvatures
        bend -= penalties * along
        turn = np.linalg.solve(here.hessian, bend)
        # Up to half of the step, the loss falls in this direction, too.
        if not turn @ bend <= step.decrease / 2:
            return step
        return step._replace(change=step.change - turn)

    def _log_evidence(self, number, step, here):
        """That of `solvers.laplace.with_evidence`, at the end of a step."""
        plain_value, curvature = self.plain
        determinants = self.log_det_ridges[number] + math.log(curvature)
        determinants -= np.linalg.slogdet(here.hessian)[1]
        gain = plain_value - step.objective + step.decrease
        return float(gain / self.phi + determinants / 2)

    def _keep(self, number, step, log_evidence):
        """A fit, with the last step."""
        if not math.isfinite(log_evidence):
            raise ArithmeticError("The curvature is only rounding.")
        self.found[number] = step.start + step.change, log_evidence, self.steps
        self.waiting.remove(number)

    def _starts_elsewhere(self, here):
        """Begin the next fit; whether at another point than this one."""
        if self.waiting:
            self._begin(self.waiting[0])
        return False

    def _go(self, step):
        self.least, self.start = step.objective, step.start
        self._move(step.change)

    def _move(self, change):
        self.steps += 1
        if self.steps > MAX_STEPS or not np.isfinite(change).all():
            raise ArithmeticError("There is no step.")
        self.change, self.deviations = change, self.start + change


class ChoosingPath(Path):
    """The fits of one path from the most likely one on, and only likely ones.

    The Hessian of each tells where the others are, and their evidence. At least
    one is found.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.number, self.guesses = None, {}
        # Log evidence as temperature scaling tells it, which is next to narrow
        # fits.
        self.narrow = {}
        # The highest of all paths so far, and of those that are around 0 if
        # this one is; else infinity.
        self.highest, self.of_its_kind = -np.inf, np.inf

    def _keep(self, number, step, log_evidence):
        super()._keep(number, step, log_evidence)
        self.highest = max(self.highest, log_evidence)
        self.of_its_kind = max(self.of_its_kind, log_evidence)

    def _starts_elsewhere(self, here):
        first = self.number is None
        for number in self.waiting:
            self._guess(number, here)
        guesses = {number: self.guesses[number] for number in self.waiting}
        least = self.highest - MARGIN
        least = min(least, self.of_its_kind - MARGIN_OF_WIDTHS)
        likely = [
            number
            for number, guess in guesses.items()
            if first or not guess.possible < least
        ]
        if likely:
            self._begin(min(likely, key=lambda number: guesses[number].order))
            self._go(guesses[self.number].step)
            return True
        self.steps = 0
        for number, guess in guesses.items():
            self._keep(number, guess.step, guess.log_evidence)
        return True

    def _guess(self, number, here):
        """Guess a fit from here, unless one was found that is nearer to it."""
        wider, away = True, len(self.ridges)
        if self.number is not None:
            wider, away = number > self.number, abs(number - self.number)
            if away > self.guesses[number].away:
                return
        step = self._step(number, self._objective(number, here), here)
        log_evidence = self._log_evidence(number, step, here)
        possible = log_evidence + wider * step.decrease / self.phi
        narrow = self.narrow.setdefault(number, log_evidence)
        self.guesses[number] = _Guess(
            step, log_evidence, np.fmax(possible, narrow), away
        )
