"""Training and calibration data of every kind, batch by batch."""
