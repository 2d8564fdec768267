"""Attacks the engine by machine: histories from a seed, real roles, and a model that knows no engine code."""
