"""Security: certificates, tokens, TLS, authorization of every RPC, and limits on the resources that a caller can use."""
