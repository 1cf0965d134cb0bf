"""A progress bar for what may take long."""

import time

import keras

PATIENCE = 3.0  # seconds


class ProgressBar:
    """A progress bar that appears after a few seconds, if at all.

    Args:
        total: number of steps; `None` if unknown.
        verbose: 0 for no bar, 1 for one from the first step, `"auto"` for one
            that appears after a few seconds.
        unit_name: what a step is.
    """

    def __init__(self, total, verbose, *, unit_name="step"):
        self.total = total
        self.verbose = verbose
        self.unit_name = unit_name
        self.done = 0
        self.bar = None
        self.start = time.monotonic()

    def step(self):
        """One step is done."""
        self.done += 1
        if self.verbose == 0:
            return
        waited = time.monotonic() - self.start
        late = waited > PATIENCE and self.done != self.total
        if self.bar is None and (self.verbose == 1 or late):
            self.bar = keras.utils.Progbar(self.total, unit_name=self.unit_name)
        # The last step is shown by `finish`, once.
        if self.bar is not None and self.done != self.total:
            self.bar.update(self.done)

    def finish(self):
        """All steps are done."""
        if self.bar is not None:
            self.bar.update(self.total or self.done, finalize=True)
