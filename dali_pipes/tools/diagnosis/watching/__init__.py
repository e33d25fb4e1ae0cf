"""dali-pipes diagnose -- train.py ARGS: runs a user's program as it is, and examines its loop.

words.py: reads which program the words of the command line start
-> process.py: starts it in a process of its own, and reads its answers (answers.py)
-> watched.py, in the process of the program: runs it with the hooks of hooks.py
-> watch.py: finds the loop that trains
-> examined.py: trains that loop on the batches of the examination, and answers with the report
"""
