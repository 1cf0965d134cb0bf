"""What users pass in, read once: labels, predictions, weights and masks."""
