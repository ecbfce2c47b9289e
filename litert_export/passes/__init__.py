"""Graph passes, one per file. Each has `run(graph) -> graph` and leaves a graph that verifies."""
