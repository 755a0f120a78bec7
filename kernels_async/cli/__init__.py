"""The command line `kernels-async`; it takes the extra `cli`."""
