"""Programs that diagnose watches, each in a fork of one process that has imported what they need: a
second less for each.
"""

import json
import os
import sys


def serve():
    """Reads jobs, and answers each with what the program's process sent, its output, and its
    status.
    """
    import torch

    import dali_pipes.tools.diagnosis.examination.examination
    import dali_pipes.tools.diagnosis.programs.dataloader
    import dali_pipes.tools.diagnosis.report
    import dali_pipes.tools.explain  # noqa: F401
    from dali_pipes.tools.diagnosis.watching import frames, watched

    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1).step()  # imports the compiler
    for line in sys.stdin:
        job = json.loads(line)
        reading, job["pipe"] = os.pipe()
        child = os.fork()
        if not child:
            os.chdir(job.pop("folder"))
            frames.START_FOLDER = frames.Path.cwd()
            output = os.open("output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(output, 1), os.dup2(output, 2)
            sys.argv[1:] = [json.dumps(job)]
            watched.main()
        os.close(job["pipe"])
        answers = {}
        with open(reading) as lines:
            for each in lines:
                answers |= json.loads(each)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"answers": answers, "status": status}), flush=True)


if __name__ == "__main__":
    serve()
