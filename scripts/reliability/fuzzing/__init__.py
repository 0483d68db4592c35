"""Broken inputs of all kinds, made by mutation, and what the program makes of them."""
