"""Is this machine set up for loading images and training on a GPU? A line for each check, with what to do where one is not ok.

python scripts/doctor.py
python scripts/doctor.py data.train=/my/images     # and the storage they lie on

Ends with status 0 if training on a GPU can work here, with 1 if it cannot.
"""

import sys

try:
    from dali_pipes.cli.hydra import run
    from dali_pipes.tools.doctor.run import doctor
except ImportError as error:
    sys.exit(f"error: the package cannot be imported ({error}); bash scripts/setup.sh installs what it needs")

if __name__ == "__main__":
    run("doctor", lambda config: sys.exit(not doctor(config)))
