"""Programs of several processes: conformance with gloo, strategies, lost ranks."""
