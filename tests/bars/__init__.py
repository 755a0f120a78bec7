"""The bars: what has to hold, each shown by a count of real faults.

`python -m tests.bars B1 --full --seed 7` runs one; without `--full` it is as short as in
the tests. Each module has `BARS`, from a bar's name to a function of `(full, seed)` that
returns a line of counts and raises `AssertionError` if the bar is not met.
"""
