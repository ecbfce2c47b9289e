"""One PyTorch model definition, two targets."""
