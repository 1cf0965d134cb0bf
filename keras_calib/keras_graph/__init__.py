"""The graph of a Keras model: its logits, and the layer that gives them."""
