"""Integers in, integers out: what every method costs, and how a batch is cut to fit a memory budget."""

from samplewise.plan.plan import Plan, plan

__all__ = ["Plan", "plan"]
