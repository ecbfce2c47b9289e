"""Plans for a slice: a step of a model compiled for chips that need not be here, and its costs."""
