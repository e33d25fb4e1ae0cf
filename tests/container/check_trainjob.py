"""Whether a file is a TrainJob of the installed kubeflow-trainer-api: python check_trainjob.py
FILE
"""

import sys
from pathlib import Path

import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

written = yaml.safe_load(Path(sys.argv[1]).read_text())
understood = TrainerV1alpha1TrainJob.from_dict(written).to_dict()
if understood != written:  # what the API does not know is dropped
    sys.exit(f"understood as {understood}\nbut written as {written}")
