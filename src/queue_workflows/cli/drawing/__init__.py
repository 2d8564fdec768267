"""Runs drawn as lines of text: pure functions of what is known of them, for terminals, pipes and tests."""
