"""Adapters: each tells another program what happens in a cache.

Nothing in the package imports them, and each needs what its extra installs:
`prometheus` and `opentelemetry`.
"""
