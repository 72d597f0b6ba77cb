"""Who may call whom: certificates, tokens, authorization of each RPC, TLS, and bounds on what a caller can cost."""
