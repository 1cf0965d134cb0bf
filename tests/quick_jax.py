"""Settings with which JAX compiles quickly what tests run once."""

import pathlib

# No expensive passes, and one folder of results for all processes.
SETTINGS = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true",
    "JAX_COMPILATION_CACHE_DIR": str(
        pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"
    ),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
