"""Calibration data and training data of every kind, batch by batch."""
