"""Bundle adjustment, pose-only adjustment, pose graphs and triangulation."""
