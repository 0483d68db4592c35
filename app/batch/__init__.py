"""Many scenes: found, spread over workers, reconstructed, measured, summed up; resumable at any moment."""
