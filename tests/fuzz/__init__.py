"""A differential fuzzer: random programs of views and writes, on the CPU and on `tpu`.

`python -m tests.fuzz` runs it. A program is a list of Python lines (`program.py`), drawn one by one
by hypothesis from the kinds of steps (`views.py`, `writes.py`, `reads.py`, `autograd.py`); after
each line the two sides must agree (`compare.py`).
"""
