"""The soak: many servers share one cache directory while everything goes wrong.

`python -m tests.soak --minutes N [--seed S] [--processes P]` runs it. Each server opens,
uses, abuses and closes caches; the soak kills servers, workers and compilers and spoils
the directory. Every kernel that is delivered is run and compared. The last line states
the counts; the exit status is 1 if a result was wrong, or anything hung or leaked.
"""
