"""Types as data, and the encoding of values and keys as bytes.

`schema` describes a type, `value_codec` and `key_codec` make bytes of its values, `schema_codec`
reads bytes without the user's classes, and `schema_evolution` compares two versions of a type.
May import only top-level modules.
"""
