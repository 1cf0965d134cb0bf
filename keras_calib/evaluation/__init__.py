"""Calibration errors of whole arrays, in NumPy."""
