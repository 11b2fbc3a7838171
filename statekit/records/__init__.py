"""Records between Python and Arrow: declared types, reading from columns, writing to columns.

`record_type` is the type of a stream, `arrow_reader` makes records of columns, `output_type` and
`arrow_writer` make columns of what functions emit, and `preaggregate` combines columns before rows
are made of them. May import `codec` and top-level modules.
"""
