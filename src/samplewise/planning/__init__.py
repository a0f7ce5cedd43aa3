"""Integers in, integers out: what every method costs, and how a batch is cut to fit a memory budget."""
