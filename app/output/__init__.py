"""The result folder, written while the run goes on and read back."""
