"""What a run learns: its network, the loss of a step, and what an evaluation measures.

`build_task` makes the task that suits the labels, or takes the user's object; a trainer knows only
what `Task` has.
"""
