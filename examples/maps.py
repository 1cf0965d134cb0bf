"""The maps that examples compare with temperature scaling, by their names."""

# `make(name)` in `benchmarks/no_harm.py` knows what follows a name.
ANY_CLASSES = (
    "EnsembleTemperatureScaling",
    "BiasCorrectedTemperatureScaling",
    "ClassTemperatureScaling",
    "VectorScaling",
    "MatrixScaling",
    "DirichletScaling",
    "IntraOrderPreserving",
    "SplineCalibration",
    "IsotonicCalibration",
    "IsotonicCalibration per class",
    "HistogramBinning",
    "ParameterizedTemperatureScaling",
)
TWO_CLASSES = ("BetaCalibration", "PlattScaling", "QuadraticScaling")
