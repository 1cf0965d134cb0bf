"""How maps are fitted: solvers in NumPy, the same on every backend."""
