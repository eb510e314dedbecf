"""Options of the configuration that decorated functions make.

A decorator of `tandem.contracts` registers a function when its module is imported, which
`plugins=[module]` does before composing. Keywords with defaults become configuration keys. A
function in a notebook is an option once its cell has run. Built-in functions use the same
decorators.
"""
