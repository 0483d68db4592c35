"""The Python interface, as ``import stream_recon`` offers it: thin over stages, run, engine and result."""
