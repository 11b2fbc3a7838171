"""From batches of sources to records: of columns, JSON, CSV and Avro.

May import `expressions`, `records`, `connectors`, `checkpoint` and whatever those may import.
"""
