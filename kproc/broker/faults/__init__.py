"""Fault injection: rules by which a broker for tests misbehaves on demand. Imported at the first rule.

`README.md` beside this file says how the parts work together.
"""
