"""Exact neural transducer losses that never hold the 4-D output tensor (B, T, U+1, V)."""

__version__ = "0.1.0"
