"""Fuzzing: inputs of all kinds, damaged by mutation, and the program's reactions."""
