"""Tests that start real Spark."""
