"""The command line, installed as `torch_tpu_unified.cli`: parse, call the public API, render."""
