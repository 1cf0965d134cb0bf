"""How calibration layers are fitted: in NumPy, the same on every backend.

An objective that is a loss of Keras is computed by the backend.
"""
