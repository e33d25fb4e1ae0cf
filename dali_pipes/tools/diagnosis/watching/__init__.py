"""dali-pipes diagnose -- train.py ARGS: runs a user's program as it is, and examines its loop.

system/program: reads the words of the command line, and runs a program in a process of its own
-> process.py: starts the program, and reads its answers
-> watched.py, in the process of the program: runs it with the hooks of hooks.py
-> watch.py: finds the loop that trains
-> examined.py: trains that loop on the batches of the examination, and answers with the report
"""
