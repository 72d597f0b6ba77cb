"""A fleet behind HTTP: requests with keys go in and are answered, outputs come out. One process next to the fleet, a client like any other."""
