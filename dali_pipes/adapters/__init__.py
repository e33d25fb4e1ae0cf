"""Our loaders in other people's training programs; a module needs the library of its name, and
nothing else imports it.
"""
