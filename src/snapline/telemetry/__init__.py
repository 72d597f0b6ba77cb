"""Logs, metrics, health and traces that processes offer to operators."""
