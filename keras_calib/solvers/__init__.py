"""How calibration layers are fitted: NumPy only, the same on every backend."""
