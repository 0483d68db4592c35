"""The program: sources, engine, writers, viewer and commands."""
