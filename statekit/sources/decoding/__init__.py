"""From batches of sources to records: of columns, JSON, CSV and Avro.

May import what `sources` may import, except sources.
"""
