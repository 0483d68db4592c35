"""Features, matching, retrieval, covisible pairs and tracks."""
