"""What every room needs: checked arguments, quoting, scopes, progress, limits of the machine.

In: arguments, strings and files of callers. Out: the same checked, or one of `ggmlpy.errors`.
"""
