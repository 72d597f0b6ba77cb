"""Logging, metrics, health checks and tracing of Snapline's processes."""
