"""The graph of a Keras model: what it ends in, its logits, its last layer."""
