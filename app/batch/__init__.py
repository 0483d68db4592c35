"""Batch: many scenes found, reconstructed by parallel workers, evaluated and summarised; resumable at any time."""
