"""Security: certificates, tokens, authorization of each RPC, TLS, and limits on the resources that a caller can use."""
