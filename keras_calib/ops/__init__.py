"""Formulas of tensors: no state, no files, no plots."""
