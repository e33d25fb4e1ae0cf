"""python -m dali_pipes.cli JOB [OPTION=VALUE …], where the command dali-pipes is not installed, and
for torchrun.
"""

from dali_pipes.cli import main

if __name__ == "__main__":
    main()
