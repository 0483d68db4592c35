"""Result folders in the forms that other programs read: pure functions of what a run left on disk."""
