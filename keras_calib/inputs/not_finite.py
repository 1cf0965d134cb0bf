"""The error for predictions that are no numbers."""


class NotFinite(ValueError):
    """Predictions with NaN or infinity, as a network gives that diverged."""
