"""Plain gRPC services in the cuts of a fleet (docs/grpc.md)."""
