"""Planning: which configurations fit in a GPU's memory, and their expected speed."""
