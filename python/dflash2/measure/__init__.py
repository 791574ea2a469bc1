"""Acceptance on a user's own traffic: measured, summarised, reported."""
