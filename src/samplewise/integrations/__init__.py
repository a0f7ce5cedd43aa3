"""Losses, joints and patches under the names and arguments of the tools that people train with: one module for each.

A module imports its tool only where it needs it, so all of them can be imported where none of the tools is installed. What
changes in numbers and memory is said in docs/migrate.md.
"""
