"""Security: certificates, tokens, authorization of each RPC, TLS, and bounds on a caller's cost."""
