"""The winner of the search against the default, in new trials: the best of many was partly lucky in the trials that selected it."""

from dali_pipes.measure.figures import Figures, Trial, result_figures
from dali_pipes.measure.protocol import rounds
from dali_pipes.measure.stats import LEAST_PAIRS
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.system.progress import track
from dali_pipes.tools.tuning.limits import ran_out_of_memory
from dali_pipes.tools.tuning.search import Run
from dali_pipes.tools.tuning.settings import Setting


def compare(run: Run, default: Setting, winner: Setting, pairs: int, seed: int) -> Figures:
    """The A/B of docs/method.md: rounds of the default, the winner ("tuned") and, from five pairs on, the default once more.

    Returns:
        `arms` and `control` as in docs/result.md; and `failed`: that the winner ran out of memory, or None.

    Raises:
        ArmError: a trial failed for another reason, or one of the default.
    """
    arms = {"default": default, "tuned": winner}
    each_round = [("round", "default"), ("round", "tuned"), *([("control", "default")] if pairs >= LEAST_PAIRS else [])]
    plan = [(number, *trial) for number, order in enumerate(rounds(each_round, pairs, seed), 1) for trial in order]
    done: list[Trial] = []
    for number, phase, arm in track(plan, lambda each: f"{each[1]} {each[0]} of {pairs}: {each[2]}", len(plan)):
        try:
            done.append(run(arms[arm], arm, phase, number))
        except ArmError as error:
            if arm == "default" or not ran_out_of_memory(error):
                raise
            return {"arms": {}, "control": None, "failed": "ran out of memory"}
    return result_figures(done, list(arms), "default") | {"failed": None}
