"""Process functions, and the declarations in their signatures.

`process` is the decorator, `signature` reads the parameters, `context` is what a function knows
about its epoch. `stateless` are functions without state, as of `map`. May import `state`,
`calls`, `expressions`, `records` and whatever those may import.
"""
