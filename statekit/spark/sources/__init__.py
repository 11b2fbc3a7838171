"""Spark data sources: state and changes of checkpoints as DataFrames."""
