"""Why training waits: measures the model and the loader, alone and together, and predicts what
fixes would gain.

Three ways lead in: `run.py` for a configuration of dali-pipes train, `function.py` for
dali_pipes.diagnose(loader, step), and `watching/` for dali-pipes diagnose -- train.py. All of them
end in `report.py`. Between them, the lowest first:

measuring/    one span of work, with the machine's counters
items/        where the time of a data set's items goes
verdict/      why it says X: the figures, a rule for each cause, the verdict of all rounds
programs/     what is measured: a file for each kind of loader, with the options that it may change
fixes/        what is advised, and what a change would gain
examination/  what is measured, in which order, and what is left out when the time is over
"""
